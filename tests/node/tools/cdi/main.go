// The cache of CDI specs that containerd and CRI-O have, asked line by line: a device's name in, what a container with it
// would see as NVIDIA_VISIBLE_DEVICES out, "-" where there is no such device.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(os.Args[1]))
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		// As both runtimes do first; it reads nothing again while a watch is at work.
		_ = cache.Refresh()
		spec := &oci.Spec{Process: &oci.Process{}}
		seen := "-"
		if _, err := cache.InjectDevices(spec, lines.Text()); err == nil {
			for _, each := range spec.Process.Env {
				if value, found := strings.CutPrefix(each, "NVIDIA_VISIBLE_DEVICES="); found {
					seen = value
				}
			}
		}
		fmt.Println(seen)
	}
}
