"""How a node learns of its pods, however many and however large they are."""

import asyncio

import pytest

from criproxy.kube import client as kube_client
from criproxy.kube.bound_pods import bound_pods
from criproxy.kube.client import LargeAnswerError, RejectedError


def pod(name, phase="Running", size=0):
    return {"metadata": {"name": name, "uid": name, "annotations": {"x": "a" * size}}, "status": {"phase": phase}}


def names(client):
    return [one.metadata.name for one in asyncio.run(bound_pods(client, "node1"))]


def test_pods_that_have_ended_are_not_asked_for(client, api):
    api.pods = [pod("a"), pod("b", "Succeeded"), pod("c", "Failed"), pod("d", "Pending")]
    assert names(client) == ["a", "d"]
    assert len(api.requests) == 1


def test_large_pods_come_in_pages_and_hide_no_other(client, api, monkeypatch):
    monkeypatch.setattr(kube_client, "MAX_BODY_BYTES", 64 << 10)
    api.pods = [pod(f"p{number}", size=20_000 if number % 2 else 0) for number in range(100)]
    assert names(client) == [f"p{number}" for number in range(100)]
    asked = [one.query.get("limit") for one in api.requests]
    assert asked[:6] == [None, "64", "32", "16", "8", "4"]
    assert len(asked) == 5 + 25


def test_a_few_large_pods_make_the_pages_of_no_others_small(client, api, monkeypatch):
    monkeypatch.setattr(kube_client, "MAX_BODY_BYTES", 64 << 10)
    api.pods = [pod(f"p{number}", size=20_000 if number < 4 else 0) for number in range(300)]
    assert names(client) == [f"p{number}" for number in range(300)]
    assert len(api.requests) <= 20


def test_one_pod_that_is_larger_than_any_is_said(client, api, monkeypatch):
    monkeypatch.setattr(kube_client, "MAX_BODY_BYTES", 16 << 10)
    api.pods = [pod("a"), pod("b", size=20_000)]
    with pytest.raises(LargeAnswerError, match="more than 16384 bytes"):
        names(client)


def test_server_that_refuses_is_told_of(client, api):
    api.pods = [pod("a")]
    api.fail("/api/v1/pods", 403)
    with pytest.raises(RejectedError, match="403"):
        names(client)
