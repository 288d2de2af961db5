"""What Serve's REST API says of applications: read from its JSON, as far as it is needed here.

Pure. Source of the shape: ``ServeInstanceDetails`` in ``ray.serve.schema``.
"""

from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, Field

from deployments.report import reason_in

RUNNING = "RUNNING"
DEPLOY_FAILED = "DEPLOY_FAILED"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ReplicaState(_Part):
    replica_id: str
    state: str
    node_ip: str | None = None


class DeploymentState(_Part):
    status: str
    message: str = ""
    target_num_replicas: int = 0
    replicas: tuple[ReplicaState, ...] = ()

    @property
    def num_running(self) -> int:
        return sum(replica.state == RUNNING for replica in self.replicas)

    @property
    def num_missing(self) -> int:
        """Replicas that are wanted and don't run yet."""
        return max(0, self.target_num_replicas - self.num_running)


class ApplicationState(_Part):
    status: str
    message: str = ""
    deployments: dict[str, DeploymentState] = Field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The last line that says something, of what is said; empty where nothing is."""
        said = [each.message for each in self.deployments.values() if each.message]
        text = next(iter(said), self.message)
        return reason_in(text) if text.strip() else ""

    @property
    def num_missing(self) -> int:
        return sum(deployment.num_missing for deployment in self.deployments.values())


class ServeState(_Part):
    applications: dict[str, ApplicationState] = Field(default_factory=dict)

    def waiting(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that don't run."""
        return [name for name in names if self.status_of(name) != RUNNING]

    def failed(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self.status_of(name) == DEPLOY_FAILED]

    def status_of(self, name: str) -> str:
        application = self.applications.get(name)
        return "NOT_STARTED" if application is None else application.status

    def describe(self, name: str) -> str:
        """`alpha DEPLOYING (2 replicas missing): why`."""
        application = self.applications.get(name)
        text = f"{name} {self.status_of(name)}"
        if application is None or application.status == RUNNING:
            return text
        if application.num_missing:
            text += f" ({application.num_missing} replicas missing)"
        return f"{text}: {application.reason}" if application.reason else text
