"""`headwater deploy`, `status` and `rollback`: boto3 as it is, against moto's server and a small
stand-in for Serve's REST API, both on loopback.
"""

import hashlib
import json
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.aws.config_history import ConfigHistory
from deployments.aws.deploy_lock import LOCK_KEY
from deployments.cli import main
from engine.checkpoints.pull import pull
from tests.integration.aws_cluster import REGION, AwsCluster, aws_endpoint, make_cluster
from tests.integration.fake_serve import FakeServe, fake_serve
from tests.unit.engine.checkpoints.published import publish, write_json

with warnings.catch_warnings():  # Ray's own modules warn, and warnings are errors here
    warnings.simplefilter("ignore")
    import ray.serve.schema  # noqa: F401

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

_numbers = count(1)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, aws_endpoint(patch) as url:
        yield url


@pytest.fixture
def cluster(endpoint: str) -> AwsCluster:
    return make_cluster(f"river-{next(_numbers)}")


@pytest.fixture
def serve() -> Iterator[FakeServe]:
    with fake_serve() as fake:
        yield fake


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("HEADWATER_HOME", str(home))
    return home


@pytest.fixture
def file(tmp_path: Path, home: Path) -> Path:
    """Of a model that lies in a folder of this machine."""
    folder = publish(tmp_path / "tiny")
    return write(tmp_path / "serve.yaml", config(str(folder)))


def config(source: str, **args: Any) -> dict[str, Any]:
    return {
        "http_options": {"host": "127.0.0.1", "port": 8000},
        "applications": [
            {
                "name": "gateway",
                "route_prefix": "/",
                "import_path": "deployments.build:build_gateway",
                "deployments": [{"name": "Gateway", "user_config": {"models": [{"name": "tiny"}]}}],
            },
            {
                "name": "tiny",
                "route_prefix": None,
                "import_path": "deployments.build:build_model",
                "args": {
                    "name": "tiny",
                    "source": source,
                    "engine": {"runner": "paced", "kv_cache_bytes": 1 << 20},
                    **args,
                },
            },
        ],
    }


def write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
    return path


def run(command: str, cluster: AwsCluster, serve: FakeServe, *more: str) -> int:
    name = cluster.card.name
    timeout = [] if command == "status" else ["--timeout-s", "5"]
    return main([command, *timeout, "--cluster", name, "--address", serve.address, *more])


def deploy(file: Path, cluster: AwsCluster, serve: FakeServe, *more: str) -> int:
    return run("deploy", cluster, serve, str(file), *more)


def keys_in_force(cluster: AwsCluster) -> list[str]:
    return [each.key for each in ConfigHistory(cluster.clients, cluster.card).versions()]


def test_a_file_is_stored_by_its_hash_given_to_serve_and_pointed_at(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(file, cluster, serve) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert "http_options.host: 0.0.0.0 in place of 127.0.0.1" in output.out
    assert output.out.splitlines()[-1] == "all applications run: https://llm.example.com"
    (key,) = keys_in_force(cluster)
    body = cluster.clients.s3.get_object(Bucket=cluster.card.config_bucket, Key=key)["Body"].read()
    assert key == f"serve/{hashlib.sha256(body).hexdigest()}.yaml"
    assert yaml.safe_load(body) == serve.puts[0]
    assert serve.puts[0]["http_options"] == {"host": "0.0.0.0", "port": 8000}
    assert LOCK_KEY not in cluster.keys(cluster.card.config_bucket)


def test_a_model_of_this_machine_is_uploaded_and_pulled_from_the_bucket_with_its_pin(
    file: Path, cluster: AwsCluster, serve: FakeServe, home: Path, tmp_path: Path
) -> None:
    assert deploy(file, cluster, serve) == 0
    args = serve.puts[0]["applications"][1]["args"]
    revision = args["weights_sha256"]
    assert args["source"] == f"s3://{cluster.card.weights_bucket}/tiny/{revision}"
    assert "source_sha256" not in args
    copy = pull(args["source"], name="copy", home=tmp_path / "node")
    assert copy.revision == revision


def test_another_template_beside_the_same_weights_does_not_replace_what_runs(
    file: Path, cluster: AwsCluster, serve: FakeServe, tmp_path: Path
) -> None:
    assert deploy(file, cluster, serve) == 0
    described = tmp_path / "tiny" / "tokenizer_config.json"
    content = json.loads(described.read_text("utf-8"))
    described.unlink()  # the store may share the old file
    write_json(described, {**content, "chat_template": "another"})
    assert deploy(file, cluster, serve) == 0
    first, second = (put["applications"][1]["args"] for put in serve.puts)
    assert first["weights_sha256"] == second["weights_sha256"]
    assert second["source"].startswith(f"{first['source']}-")
    assert pull(first["source"], name="old", home=tmp_path / "n").chat_template != "another"
    assert pull(second["source"], name="new", home=tmp_path / "n").chat_template == "another"


def test_a_model_that_is_pinned_and_there_is_not_pulled_again(
    file: Path, cluster: AwsCluster, serve: FakeServe, home: Path, tmp_path: Path
) -> None:
    assert deploy(file, cluster, serve) == 0
    manifest = pull(str(tmp_path / "tiny"), name="tiny", home=home).manifest
    pins = {"weights_sha256": manifest.weights_sha256, "source_sha256": manifest.source_sha256}
    write(file, config(manifest.source, **pins))
    for path in sorted(home.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert deploy(file, cluster, serve) == 0
    assert not (home / "models" / "tiny").exists()
    assert serve.puts[1] == serve.puts[0]


def test_sources_are_left_when_that_is_asked(
    file: Path, cluster: AwsCluster, serve: FakeServe, tmp_path: Path
) -> None:
    assert deploy(file, cluster, serve, "--keep-sources") == 0
    assert serve.puts[0]["applications"][1]["args"]["source"] == str(tmp_path / "tiny")
    assert cluster.keys(cluster.card.weights_bucket) == []


def test_the_same_file_twice_is_one_version(
    file: Path, cluster: AwsCluster, serve: FakeServe
) -> None:
    assert deploy(file, cluster, serve) == 0
    assert deploy(file, cluster, serve) == 0
    assert len(keys_in_force(cluster)) == 1


def test_what_serve_refuses_leaves_the_version_before_in_force(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(file, cluster, serve) == 0
    before = keys_in_force(cluster)
    write(file, {**yaml.safe_load(file.read_text()), "target_capacity": 50})
    serve.refusal = "RayTaskError: no such option"
    assert deploy(file, cluster, serve) == 1
    assert capsys.readouterr().err == (
        "Serve refused the file, version 1 stays in force: RayTaskError: no such option\n"
    )
    assert keys_in_force(cluster) == before
    assert LOCK_KEY not in cluster.keys(cluster.card.config_bucket)


def test_an_application_that_fails_is_told_with_its_reason_and_rollback_goes_back(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(file, cluster, serve) == 0
    write(file, {**yaml.safe_load(file.read_text()), "target_capacity": 50})
    serve.statuses = {"tiny": ("DEPLOY_FAILED", "no memory for weights")}
    capsys.readouterr()
    assert deploy(file, cluster, serve) == 1
    assert "version 2 is in force, but: tiny DEPLOY_FAILED" in (error := capsys.readouterr().err)
    assert "no memory for weights" in error
    serve.statuses = {}
    assert run("rollback", cluster, serve) == 0
    first, second, third = keys_in_force(cluster)
    assert third == first != second
    assert serve.puts[-1] == serve.puts[0]


def test_an_application_that_does_not_come_is_named_at_the_time_out(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.statuses = {"tiny": ("DEPLOYING", "")}
    assert deploy(file, cluster, serve, "--timeout-s", "0") == 1
    output = capsys.readouterr()
    assert "1 of 2 run; tiny DEPLOYING (1 replicas missing)" in output.out
    assert "there still don't run: tiny DEPLOYING (1 replicas missing)" in output.err


def test_rollback_to_a_version_that_is_not_there_is_one_line(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("rollback", cluster, serve) == 1
    assert capsys.readouterr().err == "nothing has been deployed yet: headwater deploy FILE\n"
    assert deploy(file, cluster, serve) == 0
    assert run("rollback", cluster, serve) == 1
    assert run("rollback", cluster, serve, "--to", "7") == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "only one file was ever deployed: there is nothing to go back to",
        "there is no version 7: AWS has 1 to 1, see headwater status",
    ]


def test_a_stored_file_that_was_changed_is_not_deployed(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert deploy(file, cluster, serve) == 0
    bucket, (key,) = cluster.card.config_bucket, keys_in_force(cluster)
    cluster.clients.s3.put_object(Bucket=bucket, Key=key, Body=b"applications: []")
    assert run("rollback", cluster, serve, "--to", "1") == 1
    cluster.clients.s3.delete_object(Bucket=bucket, Key=key)
    assert run("rollback", cluster, serve, "--to", "1") == 1
    changed, gone = capsys.readouterr().err.splitlines()
    assert "is not what was deployed" in changed
    assert "is gone" in gone
    assert len(serve.puts) == 1


def test_who_deploys_while_another_does_is_told(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = {"holder": "another-machine", "until_s": 1e12}
    cluster.clients.s3.put_object(
        Bucket=cluster.card.config_bucket, Key=LOCK_KEY, Body=json.dumps(lock).encode()
    )
    assert deploy(file, cluster, serve) == 1
    assert "another-machine is deploying" in capsys.readouterr().err
    assert serve.puts == []
    assert keys_in_force(cluster) == []


def test_the_head_gives_serve_what_is_in_force_only_if_it_runs_nothing(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("deploy", cluster, serve, "--current") == 0
    assert deploy(file, cluster, serve) == 0
    assert run("deploy", cluster, serve, "--current") == 0
    assert len(serve.puts) == 1
    given = serve.puts.pop()  # the head is a new one
    assert run("deploy", cluster, serve, "--current") == 0
    assert serve.puts == [given]
    assert capsys.readouterr().out.splitlines()[-1] == "Serve has version 1 again"
    assert len(keys_in_force(cluster)) == 1


def test_status_tells_of_applications_nodes_and_versions(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("status", cluster, serve) == 1  # nothing runs yet
    assert "nothing has been deployed yet" in capsys.readouterr().out
    assert deploy(file, cluster, serve) == 0
    capsys.readouterr()
    assert run("status", cluster, serve) == 0
    text = capsys.readouterr().out
    assert f"{cluster.card.name} in us-east-1: https://llm.example.com" in text
    assert "tiny RUNNING\n  D HEALTHY: 1 of 1 replicas run" in text
    assert "1 x head (on-demand) running" in text
    assert "version 1 in force" in text
    assert "deploy of serve.yaml" in text
    assert run("status", cluster, serve, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["applications"]["tiny"]["status"] == "RUNNING"
    assert [node["pool"] for node in data["nodes"]] == ["head"]
    assert [version["version"] for version in data["config"]] == [1]


def test_status_without_serve_still_tells_the_rest(
    cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.token = "another"
    assert run("status", cluster, serve) == 1
    output = capsys.readouterr()
    assert "Serve can't be asked" in output.out
    assert "doesn't take the cluster's token" in output.out
    assert "1 x head" in output.out


@pytest.mark.parametrize("command", ["status", "rollback"])
def test_a_cluster_that_is_not_there_is_told_with_those_that_are(
    command: str, cluster: AwsCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--cluster", "elsewhere"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("there is no cluster 'elsewhere' in us-east-1, but ")
    assert cluster.card.name in error
    assert main([command, "--cluster", "elsewhere", "--region", "eu-west-1"]) == 1
    assert "nor any other: give the cluster's --region" in capsys.readouterr().err
    assert main([command, "--cluster", "Not A Name"]) == 1
    assert "is no cluster's name" in capsys.readouterr().err


def test_without_credentials_or_region_there_is_one_line(
    cluster: AwsCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert main(["status", "--cluster", cluster.card.name]) == 1
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert main(["status", "--cluster", cluster.card.name]) == 1
    without_credentials, without_region = capsys.readouterr().err.splitlines()
    assert "there are no AWS credentials" in without_credentials
    assert without_region == "no region is chosen: give --region, or set AWS_REGION"


def test_a_card_of_another_format_is_one_line(
    cluster: AwsCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.write_card(json.dumps({"format": 2}))
    assert main(["status", "--cluster", cluster.card.name]) == 1
    assert "has the format 2, this headwater reads 1" in capsys.readouterr().err


def test_a_bucket_that_is_missing_is_one_line(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.clients.s3.delete_bucket(Bucket=cluster.card.config_bucket)
    assert deploy(file, cluster, serve) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the bucket doesn't exist" in line
    assert serve.puts == []


def test_a_serve_that_is_away_leaves_nothing_in_force(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    serve.broken_status = 503
    assert deploy(file, cluster, serve) == 1
    assert "answered with status 503" in capsys.readouterr().err
    assert keys_in_force(cluster) == []


def test_a_file_that_does_not_fit_names_line_and_pools(
    file: Path, cluster: AwsCluster, serve: FakeServe, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, config("hf:team/tiny", num_gpus=8))
    assert deploy(file, cluster, serve) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file}:")
    assert "a replica needs 8 devices of one node" in line
    assert "l40s 4" in line
    assert serve.puts == []


def test_a_file_with_faults_is_told_before_aws_is_asked(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(file, config("hf:team/tiny", num_gpu=8))
    assert main(["deploy", str(file), "--cluster", "nowhere", "--region", REGION]) == 1
    assert "unknown key, did you mean 'num_gpus'?" in capsys.readouterr().err
