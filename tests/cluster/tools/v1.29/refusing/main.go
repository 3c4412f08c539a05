// kube-scheduler with one more plugin: it refuses pods that ask for that, once their GPUs are reserved.
package main

import (
	"context"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/cli"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const (
	name = "Refusing"
	// where is the annotation that names the extension point at which the pod is refused.
	where = "example.com/refused-at"
)

type plugin struct{}

func (plugin) Name() string { return name }

func refused(pod *v1.Pod, point string) *framework.Status {
	if pod.Annotations[where] == point {
		return framework.NewStatus(framework.Unschedulable, "refused on demand")
	}
	return nil
}

func (plugin) Reserve(_ context.Context, _ *framework.CycleState, pod *v1.Pod, _ string) *framework.Status {
	return refused(pod, "Reserve")
}

func (plugin) Unreserve(context.Context, *framework.CycleState, *v1.Pod, string) {}

func (plugin) PreBind(_ context.Context, _ *framework.CycleState, pod *v1.Pod, _ string) *framework.Status {
	return refused(pod, "PreBind")
}

func main() {
	made := func(context.Context, runtime.Object, framework.Handle) (framework.Plugin, error) {
		return plugin{}, nil
	}
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(name, made))))
}
