locals {
  worker_groups = {
    for name, pool in var.pools : name => {
      groupName      = name
      replicas       = pool.min_nodes
      minReplicas    = pool.min_nodes
      maxReplicas    = pool.max_nodes
      rayStartParams = {}
      template = { spec = merge(local.pod, {
        nodeSelector = pool.node_selector
        tolerations = [
          for each in coalesce(pool.tolerations, local.default_tolerations[name]) :
          { for key, value in each : key => value if value != null }
        ]
        affinity = { nodeAffinity = { requiredDuringSchedulingIgnoredDuringExecution = { nodeSelectorTerms = [{
          matchExpressions = [{ key = "node.kubernetes.io/instance-type", operator = "In", values = pool.instance_types }]
        }] } } }
        containers = [merge(local.container, {
          name = "ray-worker"
          resources = {
            requests = merge(local.quantities[name], { cpu = tostring(pool.num_cpus) })
            limits   = local.quantities[name]
          }
        })]
      }) }
    }
  }

  quantities = {
    for name, pool in var.pools : name => merge(
      pool.num_devices == 0 ? {} : { "nvidia.com/gpu" = tostring(pool.num_devices) },
      pool.memory_gb == null ? {} : { memory = "${coalesce(pool.memory_gb, 0)}G" },
    )
  }

  default_tolerations = {
    for name, pool in var.pools : name => [
      for key in pool.num_devices == 0 ? [] : ["nvidia.com/gpu"] :
      { key = key, operator = "Exists", value = null, effect = "NoSchedule" }
    ]
  }
}
