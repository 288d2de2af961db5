locals {
  serve = yamldecode(file(var.serve_file))
  # A pod's loopback is its own: the service reaches its other addresses.
  serve_config = merge(local.serve, {
    http_options = merge(try(local.serve.http_options, {}), { host = "0.0.0.0" })
  })

  home = "/headwater"
  environment = [
    { name = "HEADWATER_HOME", value = local.home },
    { name = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", value = "deployments.edge:middlewares" },
  ]

  container = {
    image        = var.image
    env          = local.environment
    volumeMounts = [{ name = "home", mountPath = local.home }]
    lifecycle = {
      preStop = { exec = { command = ["ray", "stop", "--grace-period", tostring(var.termination_grace_s - 30)] } }
    }
  }

  home_volume = merge(
    { name = "home" },
    var.nvme_path == null ? {} : { hostPath = { path = var.nvme_path, type = "DirectoryOrCreate" } },
    var.nvme_path == null ? { emptyDir = {} } : {},
  )

  pod = {
    terminationGracePeriodSeconds = var.termination_grace_s
    volumes                       = [local.home_volume]
  }

  head_group = {
    rayStartParams = { num-cpus = "0" }
    template = { spec = merge(local.pod, {
      containers = [merge(local.container, {
        name = "ray-head"
        resources = {
          requests = { cpu = "4", memory = "16Gi" }
          limits   = { memory = "16Gi" }
        }
      })]
    }) }
  }

  cluster = merge({
    rayVersion              = var.ray_version
    enableInTreeAutoscaling = true
    autoscalerOptions       = { version = "v2", idleTimeoutSeconds = var.idle_timeout_s, upscalingMode = "Default" }
    authOptions             = { mode = "token", secretName = var.token_secret }
    headGroupSpec           = local.head_group
    workerGroupSpecs        = [for name in sort(keys(var.pools)) : local.worker_groups[name]]
    }, var.redis == null ? {} : {
    gcsFaultToleranceOptions = {
      redisAddress  = var.redis.address
      redisPassword = { valueFrom = { secretKeyRef = { name = var.redis.password_secret, key = var.redis.password_key } } }
    }
  })

  rayservice = {
    apiVersion = "ray.io/v1"
    kind       = "RayService"
    metadata   = { name = var.name, namespace = var.namespace }
    spec = {
      serveConfigV2    = yamlencode(local.serve_config)
      rayClusterConfig = local.cluster
    }
  }

  helm_values = {
    singleNamespaceInstall = true
    watchNamespace         = [var.namespace]
  }
}
