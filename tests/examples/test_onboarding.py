"""Tenant onboarding: database, domain, seed data, welcome; the customer proves the domain in their own time."""

import pytest

from nbflow import EventTimeoutError, WorkflowEntrypoint
from nbflow.core.model import Status


class Onboarding(WorkflowEntrypoint):
    async def run(self, event, step):
        cloud = self.env.cloud
        tenant = event.payload["tenant"]
        database = await step.do("create database", cloud.create, f"db-{tenant}", rollback=cloud.remove)
        domain = await step.do("create domain", cloud.create, f"{tenant}.example", rollback=cloud.remove)
        await step.do("migrate", cloud.migrate, database, retries={"limit": 1, "delay": "10 seconds"})
        try:
            proof = await step.wait_for_event("domain is proven", "dns-proof", timeout="3 days")
            proven_by = proof.payload["record"]
        except EventTimeoutError:
            proven_by = None  # they may go on with our own domain
        await step.do("send welcome", cloud.mail, event.payload["admin"], f"https://{domain}")
        return {"database": database, "domain": domain, "proven by": proven_by}


class Cloud:
    def __init__(self):
        self.there = []
        self.removed = []
        self.mails = []
        self.broken = False

    def create(self, name):
        self.there.append(name)
        return name

    async def remove(self, output, step_name):
        self.there.remove(output)
        self.removed.append((step_name, output))

    def migrate(self, database):
        if self.broken:
            raise RuntimeError(f"cannot migrate {database}")

    def mail(self, whom, what):
        self.mails.append((whom, what))


@pytest.fixture
def cloud(engine):
    engine.env["cloud"] = cloud = Cloud()
    return cloud


def onboard(engine):
    return engine.register(Onboarding).create("acme", {"tenant": "acme", "admin": "ada@acme.example"})


def test_a_tenant_who_proves_the_domain_is_welcomed(engine, cloud):
    tenant = onboard(engine)
    engine.clock.advance("2 days")
    assert cloud.mails == []
    tenant.send_event("dns-proof", {"record": "TXT 42"})
    engine.clock.advance("1 second")
    assert tenant.output == {"database": "db-acme", "domain": "acme.example", "proven by": "TXT 42"}
    assert cloud.mails == [("ada@acme.example", "https://acme.example")]


def test_a_tenant_who_does_not_is_welcomed_after_three_days(engine, cloud):
    tenant = onboard(engine)
    engine.clock.advance("3 days")
    assert tenant.output["proven by"] is None
    assert len(cloud.mails) == 1


def test_a_proof_that_comes_early_is_kept(engine, cloud):
    tenant = onboard(engine)
    tenant.send_event("dns-proof", {"record": "early"})
    engine.clock.advance("1 second")
    assert tenant.output["proven by"] == "early"


def test_a_migration_that_fails_leaves_nothing_behind(engine, cloud):
    cloud.broken = True
    tenant = onboard(engine)
    engine.clock.advance("1 minute")
    assert tenant.status().status is Status.ERRORED
    assert cloud.there == []
    assert cloud.removed == [("create domain", "acme.example"), ("create database", "db-acme")]
    assert cloud.mails == []


def test_two_tenants_of_one_name_are_refused(engine, cloud):
    from nbflow import AlreadyExistsError

    onboard(engine)
    with pytest.raises(AlreadyExistsError, match="acme"):
        onboard(engine)
    engine.clock.advance("1 second")
    assert cloud.there == ["db-acme", "acme.example"]
