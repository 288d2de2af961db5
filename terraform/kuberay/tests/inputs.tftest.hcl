variables {
  name       = "river"
  serve_file = "../../configs/llama-70b-tp8.yaml"
  image      = "registry.example.com/headwater:0.1.0"
  pools = {
    h100 = { instance_types = ["p5.48xlarge"], min_nodes = 0, max_nodes = 4, num_devices = 8, num_cpus = 180 }
  }
}

run "good_inputs_render" {
  command = plan

  assert {
    condition     = yamldecode(output.rayservice).spec.rayClusterConfig.workerGroupSpecs[0].maxReplicas == 4
    error_message = "The pool's most nodes must be the group's most replicas."
  }
}

run "an_image_without_a_tag_is_refused" {
  command = plan

  variables {
    image = "registry.example.com:5000/headwater"
  }

  expect_failures = [var.image]
}

run "a_file_that_serves_nothing_is_refused" {
  command = plan

  variables {
    serve_file = "versions.tf"
  }

  expect_failures = [var.serve_file]
}

run "a_pool_whose_most_is_below_its_least_is_refused" {
  command = plan

  variables {
    pools = {
      h100 = { instance_types = ["p5.48xlarge"], min_nodes = 2, max_nodes = 1, num_devices = 8, num_cpus = 180 }
    }
  }

  expect_failures = [var.pools]
}

run "a_relative_folder_is_refused" {
  command = plan

  variables {
    nvme_path = "nvme"
  }

  expect_failures = [var.nvme_path]
}

run "no_time_to_finish_is_refused" {
  command = plan

  variables {
    termination_grace_s = 5
  }

  expect_failures = [var.termination_grace_s]
}
