// The controller of Jobs alone, as kube-controller-manager runs it: jobs KUBECONFIG.
package main

import (
	"context"
	"os"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/controller/job"
)

const workers = 5

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		panic(err)
	}
	ctx, client := context.Background(), kubernetes.NewForConfigOrDie(config)
	seen := informers.NewSharedInformerFactory(client, 0)
	// The last two are nil unless the feature gate WorkloadWithJob is on.
	controller, err := job.NewController(ctx, client, seen.Core().V1().Pods(), seen.Batch().V1().Jobs(), nil, nil)
	if err != nil {
		panic(err)
	}
	seen.Start(ctx.Done())
	controller.Run(ctx, workers)
}
