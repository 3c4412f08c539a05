"""The verbs of kube-scheduler: each module named after one reads, decides, records and answers."""
