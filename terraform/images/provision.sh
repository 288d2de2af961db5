#!/usr/bin/env bash
# Installs Headwater on AWS's Deep Learning Base AMI (Ubuntu 22.04, x86_64), as root:
#
#   provision.sh WHEEL CONSTRAINTS [EXTRAS]
#
# WHEEL is this project's wheel, CONSTRAINTS the versions it was tested with, EXTRAS what the node
# needs beside: "cuda" where there are GPUs. Without "cuda", PyTorch comes in its builds for CPUs.
# Runs when an image is built, and at a node's start where the image has another wheel or none.
# May run again after a failure, or over an older installation.
set -euo pipefail

readonly HOME_DIR=/opt/headwater
readonly VENV=$HOME_DIR/venv
readonly PYTHON=python3.11
readonly TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu

fail() {
  echo "provision.sh: $*" >&2
  exit 1
}

apt() {
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 --yes --quiet "$@"
}

add_user() {
  id headwater >/dev/null 2>&1 ||
    useradd --system --create-home --home-dir /var/lib/headwater --shell /usr/sbin/nologin headwater
  local group
  for group in video render; do # the GPUs' device files
    if getent group "$group" >/dev/null; then
      usermod --append --groups "$group" headwater
    fi
  done
  install -d -m 0755 "$HOME_DIR"
  install -d -m 0755 -o headwater -g headwater /var/log/headwater
}

# The compiler makes the decoder's step for the processor that the node has, once.
add_packages() {
  local packages=(curl g++ logrotate mdadm xfsprogs "$PYTHON" "$PYTHON-dev" "$PYTHON-venv")
  if dpkg --status "${packages[@]}" >/dev/null 2>&1; then
    return 0
  fi
  apt update
  if ! apt-cache show "$PYTHON-venv" >/dev/null 2>&1; then
    apt install software-properties-common
    add-apt-repository --yes ppa:deadsnakes/ppa
    apt update
  fi
  apt install --no-install-recommends "${packages[@]}"
}

add_aws_cli() {
  command -v aws >/dev/null || snap install aws-cli --classic
}

# Only sends logs: a node does without.
add_log_agent() {
  local region=${AWS_REGION:-us-east-1} package
  if [[ -x /opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl ]]; then
    return 0
  fi
  package=$(mktemp --suffix=.deb)
  if ! curl -fsS --retry 3 --max-time 300 --output "$package" \
    "https://amazoncloudwatch-agent-$region.s3.$region.amazonaws.com/ubuntu/amd64/latest/amazon-cloudwatch-agent.deb" ||
    ! dpkg --install "$package"; then
    echo 'provision.sh: no CloudWatch agent: logs stay on the node' >&2
  fi
  rm -f "$package"
}

add_headwater() {
  local wheel=$1 constraints=$2 extras=$3
  [[ -x $VENV/bin/python ]] || "$PYTHON" -m venv "$VENV"
  local pip=("$VENV/bin/python" -m pip --disable-pip-version-check --no-input install --no-cache-dir
    --constraint "$constraints")
  if [[ ",$extras," != *,cuda,* ]]; then
    "${pip[@]}" --no-deps --extra-index-url "$TORCH_CPU_INDEX" torch
  fi
  "${pip[@]}" "$wheel${extras:+[$extras]}"
  # Another build under the same version would be taken for installed.
  "${pip[@]}" --force-reinstall --no-deps "$wheel"
  "$VENV/bin/headwater" --help >/dev/null
  "$VENV/bin/ray" --version
}

main() {
  (($# == 2 || $# == 3)) || fail 'usage: provision.sh WHEEL CONSTRAINTS [EXTRAS]'
  ((EUID == 0)) || fail 'must run as root'
  [[ -f $1 ]] || fail "no wheel at $1"
  [[ -f $2 ]] || fail "no constraints at $2"
  [[ $(uname -m) == x86_64 ]] || fail "made for x86_64, and this is $(uname -m)"
  add_user
  add_packages
  add_aws_cli
  add_log_agent
  add_headwater "$1" "$2" "${3:-}"
  # The instance storage is ours, see the nodes' user data.
  systemctl mask dlami-nvme.service >/dev/null 2>&1 || true
}

main "$@"
