"""The declaration of every setting of the daemon."""

from functools import partial

from program.settings.declared import Setting

CHART = "devicePlugin.settings.{key}"
MANY = 1_000_000
NODE = "Node"
REQUESTS = "What pods ask for"
SHARING = "How GPUs are shared"
CONTAINERS = "What containers get"
HEALTH = "Health and remediation"
OBSERVATION = "Metrics and logs"

of_node = partial(Setting, group=NODE)
of_requests = partial(Setting, group=REQUESTS, chart=CHART)
of_sharing = partial(Setting, group=SHARING, chart=CHART)
of_containers = partial(Setting, group=CONTAINERS, chart=CHART)
of_health = partial(Setting, group=HEALTH, chart=CHART)
