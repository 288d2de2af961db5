# What all nodes' user data have in common.

variables {
  name      = "river"
  node_type = "h100"
  extras    = "cuda"
  node = {
    region               = "us-east-1"
    config_bucket        = "river-config"
    ray_token_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:river-ray-token-AbCdEf"
    wheel_key            = "wheels/1f2e3d/headwater-0.1.0-py3-none-any.whl"
    log_group            = "/headwater/river"
  }
}

run "constraints_lie_beside_the_wheel" {
  command = plan

  assert {
    condition     = strcontains(output.start, "from_config_bucket 'wheels/1f2e3d/constraints.txt'")
    error_message = "The versions of a wheel lie in its folder."
  }
}

run "a_wheel_key_that_is_no_wheel" {
  command = plan

  variables {
    node = {
      region               = "us-east-1"
      config_bucket        = "river-config"
      ray_token_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:river-ray-token-AbCdEf"
      wheel_key            = "wheels/1f2e3d/headwater.tar.gz"
      log_group            = "/headwater/river"
    }
  }

  expect_failures = [var.node]
}
