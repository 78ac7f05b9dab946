"""A rewrite changes what it names and nothing else, whatever else the message holds."""

from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from criproxy.cgroup.naming import parse_placement
from criproxy.fronts.cri import codec
from criproxy.hooks import HookSettings, offline_chain
from criproxy.hooks.hardening import CACHE_CLASS, MASKED_PATHS, READONLY_PATHS
from criproxy.model import PLACEMENT_ANNOTATION, Adjustment, HostMount, Operation, Resources, Security
from criproxy.pods.placing import adjust
from criproxy.vocabulary.unboundable import CAPABILITIES
from integration.lab import cri_client_pb2 as whole

PLACE = "/offline/pod1"
NEWER = b"\xba\x3e\x05newer"  # field 999, of a CRI that nobody knows yet
REQUESTS = {
    Operation.RUN_POD_SANDBOX: whole.RunPodSandboxRequest,
    Operation.CREATE_CONTAINER: whole.CreateContainerRequest,
    Operation.UPDATE_CONTAINER_RESOURCES: whole.UpdateContainerResourcesRequest,
    Operation.UPDATE_POD_SANDBOX_RESOURCES: whole.UpdatePodSandboxResourcesRequest,
    Operation.RESTORE_POD: whole.RestorePodRequest,
}
SCALARS: dict[int, Any] = {
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_BOOL: True,
    FieldDescriptor.CPPTYPE_ENUM: 1,
    FieldDescriptor.CPPTYPE_DOUBLE: 1.5,
}


def fill(message: Message) -> Message:
    """Set every field of a message, and an unknown one at every level."""
    message.MergeFromString(NEWER)
    for field in message.DESCRIPTOR.fields:
        if field.message_type and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update({"z": "last", "a": "first"})
        elif field.message_type and field.is_repeated:
            fill(getattr(message, field.name).add())
        elif field.message_type:
            fill(getattr(message, field.name))
        else:
            value = b"\x00\xff" if field.type == FieldDescriptor.TYPE_BYTES else SCALARS.get(field.cpp_type, 7)
            if field.is_repeated:
                getattr(message, field.name).extend([value, value])
            else:
                setattr(message, field.name, value)
    return message


def rewrite(operation: Operation, data: bytes) -> tuple[bytes, list[dict[str, object]]]:
    request = codec.Request(operation, data)
    changes = adjust(request, parse_placement(PLACE), offline_chain(HookSettings(child_quota=False)))
    return request.encode(), [change.logged() for change in changes]


def expect_resources(resources: Any) -> None:
    resources.oom_score_adj = 1000
    for field in ("cpu_quota", "cpu_period"):
        resources.ClearField(field)


def expect_confined(context: Any) -> None:
    context.seccomp.SetInParent()
    for field in ("profile_type", "localhost_ref"):
        context.seccomp.ClearField(field)
    if not context.seccomp_profile_path:
        context.seccomp_profile_path = "runtime/default"


def expect_masked(context: Any) -> None:
    """Unless it is privileged, or has users of its own."""
    users = context.namespace_options
    if not context.privileged and not (users.HasField("userns_options") and users.userns_options.mode == 0):
        for paths, least in ((context.masked_paths, MASKED_PATHS), (context.readonly_paths, READONLY_PATHS)):
            paths.extend(sorted(set(least) - set(paths)))


def expect_container(config: Any) -> None:
    expect_resources(config.linux.resources)
    expect_confined(config.linux.security_context)
    expect_masked(config.linux.security_context)
    capabilities = config.linux.security_context.capabilities
    if config.linux.security_context.HasField("capabilities"):  # two of each, which nobody knows
        capabilities.ClearField("add_capabilities")
        capabilities.ClearField("add_ambient_capabilities")


def expect(operation: Operation, message: Any) -> Any:
    """The same rewrite, written out by hand on the whole message."""
    match operation:
        case Operation.RUN_POD_SANDBOX | Operation.RESTORE_POD:
            message.config.linux.cgroup_parent = PLACE
            message.config.annotations[PLACEMENT_ANNOTATION] = PLACE
            message.config.linux.resources.oom_score_adj = 1000
            expect_confined(message.config.linux.security_context)
            for config in getattr(message, "container_configs", ()):
                expect_container(config)
        case Operation.CREATE_CONTAINER:
            message.sandbox_config.linux.cgroup_parent = PLACE
            expect_container(message.config)
        case Operation.UPDATE_CONTAINER_RESOURCES:
            expect_resources(message.linux)
        case Operation.UPDATE_POD_SANDBOX_RESOURCES:
            expect_resources(message.resources)
    return message


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize("filled", [True, False], ids=["every-field", "empty"])
def test_rewrite_differs_only_where_intended(operation: Operation, filled: bool) -> None:
    kind: Any = REQUESTS[operation]
    original = fill(kind()) if filled else kind()
    data, audit = rewrite(operation, original.SerializeToString())
    expected = expect(operation, kind.FromString(original.SerializeToString()))
    assert kind.FromString(data) == expected
    assert data.count(NEWER) == original.SerializeToString().count(NEWER)
    assert all(entry["old"] != entry["new"] for entry in audit)
    assert {entry["field"] for entry in audit} >= {"oom_score_adj"}


def test_rewrite_keeps_the_order_and_the_secrets_of_the_environment() -> None:
    envs = [whole.KeyValue(key=f"K{i}", value=b"secret") for i in (3, 1, 2, 1)]
    request = whole.CreateContainerRequest(config=whole.ContainerConfig(envs=envs))
    data, audit = rewrite(Operation.CREATE_CONTAINER, request.SerializeToString())
    assert list(whole.CreateContainerRequest.FromString(data).config.envs) == envs
    assert "secret" not in repr(audit)


def test_rewrite_replaces_a_forged_placement() -> None:
    config = whole.PodSandboxConfig(annotations={"a": "1", PLACEMENT_ANNOTATION: "/", "z": "2"})
    data, _ = rewrite(Operation.RUN_POD_SANDBOX, whole.RunPodSandboxRequest(config=config).SerializeToString())
    annotations = whole.RunPodSandboxRequest.FromString(data).config.annotations
    assert dict(annotations) == {"a": "1", "z": "2", PLACEMENT_ANNOTATION: PLACE}


def test_apply_returns_what_was_there_before() -> None:
    request = codec.Request(
        Operation.UPDATE_CONTAINER_RESOURCES,
        whole.UpdateContainerResourcesRequest(
            linux={"cpu_shares": 1024, "unified": {"cpu.weight": "100"}}
        ).SerializeToString(),
    )
    changes = [Adjustment("cpu_shares", 2, "why"), Adjustment("unified", None, "because", "cpu.weight")]
    assert [request.parts[0].apply(change) for change in changes] == [1024, "100"]
    with pytest.raises(ValueError, match="has no field 'annotations' to change"):
        request.parts[0].apply(Adjustment("annotations", "1", "", "a"))


@pytest.mark.parametrize("operation", list(Operation))
@given(data=st.binary(max_size=200))
def test_open_any_bytes_decodes_or_raises_codec_error(operation: Operation, data: bytes) -> None:
    try:
        request = codec.Request(operation, data)
    except codec.CodecError as error:
        assert str(len(data)) in str(error)
    else:
        assert codec.Request(operation, request.encode()).parts[:1] == codec.Request(operation, data).parts[:1]


def test_text_that_is_not_utf8_survives() -> None:
    raw = b"\x0a\x0c\x32\x0a\x0a\x02\xff\xfe\x12\x04\xf0\x28\x8c\x28"  # one label, key and value not UTF-8
    request = codec.Request(Operation.RUN_POD_SANDBOX, raw)
    assert request.encode() == raw
    assert request.pod is not None
    assert len(request.pod.labels) == 1


@pytest.mark.parametrize(
    ("resources", "overhead", "expected"),
    [
        pytest.param({"memory_limit_in_bytes": 100}, {}, Resources(memory_limit_bytes=100), id="memory"),
        pytest.param(
            {"memory_limit_in_bytes": 100, "cpu_shares": 512, "cpu_quota": 50_000, "cpu_period": 100_000},
            {"memory_limit_in_bytes": 5, "cpu_shares": 256, "cpu_quota": 25_000, "cpu_period": 100_000},
            Resources(cpu_period_us=100_000, cpu_quota_us=75_000, cpu_shares=768, memory_limit_bytes=105),
            id="with-overhead",
        ),
        pytest.param(
            {"memory_limit_in_bytes": -1, "cpu_quota": -1},
            {"memory_limit_in_bytes": 5, "cpu_quota": 25_000, "cpu_shares": 256},
            Resources(cpu_quota_us=-1),
            id="overhead-of-what-has-no-limit",
        ),
        pytest.param({"memory_limit_in_bytes": 9223372036854771712}, {}, Resources(), id="what-v1s-kernel-calls-none"),
        pytest.param({}, {}, Resources(), id="nothing"),
    ],
)
def test_pod_of_a_resize_has_the_sum_of_its_resources_and_its_overhead(
    resources: dict[str, int], overhead: dict[str, int], expected: Resources
) -> None:
    message = whole.UpdatePodSandboxResourcesRequest(resources=resources, overhead=overhead)
    request = codec.Request(Operation.UPDATE_POD_SANDBOX_RESOURCES, message.SerializeToString())
    assert request.pod_resources == expected


@pytest.mark.parametrize("field", ["add_capabilities", "add_ambient_capabilities"])
def test_capability_for_real_time_is_dropped_and_nothing_else_of_the_security_context_changes(field: str) -> None:
    config = whole.ContainerConfig(metadata=whole.ContainerMetadata(name="main"))
    config.linux.security_context.run_as_username = "job"
    capabilities = config.linux.security_context.capabilities
    if field not in capabilities.DESCRIPTOR.fields_by_name:
        pytest.skip("this CRI does not have it")
    getattr(capabilities, field).extend(["NET_RAW", "SYS_NICE"])
    capabilities.drop_capabilities.append("MKNOD")
    data, audit = rewrite(Operation.CREATE_CONTAINER, whole.CreateContainerRequest(config=config).SerializeToString())
    capabilities.drop_capabilities.append("SYS_NICE")
    getattr(capabilities, field).remove("SYS_NICE")
    expect_confined(config.linux.security_context)
    expect_masked(config.linux.security_context)
    assert whole.CreateContainerRequest.FromString(data).config.linux.security_context == config.linux.security_context
    assert [(entry["old"], entry["new"]) for entry in audit if entry["field"] == "drop_capabilities"] == [
        ("MKNOD", "SYS_NICE")
    ]


def asked(**context: Any) -> Security:
    """Of a container with this security context, and of a sandbox, as the codec reads it."""
    config = whole.ContainerConfig(linux={"security_context": context})
    call = codec.Request(Operation.CREATE_CONTAINER, whole.CreateContainerRequest(config=config).SerializeToString())
    return call.parts[0].security


@pytest.mark.parametrize(
    ("context", "unconfined"),
    [
        pytest.param({}, True, id="nothing"),
        pytest.param({"seccomp": {"profile_type": 1}}, True, id="unconfined"),
        pytest.param({"seccomp": {}}, False, id="runtime-default"),
        pytest.param({"seccomp": {"profile_type": 2, "localhost_ref": "a.json"}}, False, id="the-node-s-own"),
        pytest.param({"seccomp_profile_path": "unconfined"}, True, id="unconfined-by-path"),
        pytest.param({"seccomp_profile_path": "localhost/a.json"}, False, id="the-node-s-own-by-path"),
        pytest.param({"seccomp_profile_path": "localhost/a.json", "seccomp": {"profile_type": 1}}, True, id="both"),
    ],
)
def test_profile_is_given_where_the_runtime_would_apply_none(context: dict[str, Any], unconfined: bool) -> None:
    assert asked(**context).unconfined is unconfined


MASKED: dict[str, Any] = {"masked_paths": [*MASKED_PATHS, "/proc/interrupts"], "readonly_paths": READONLY_PATHS}


@pytest.mark.parametrize(
    ("context", "unmasked"),
    [
        pytest.param({}, True, id="unmasked"),
        pytest.param(MASKED, False, id="default"),
        pytest.param({**MASKED, "readonly_paths": READONLY_PATHS[1:]}, True, id="one-is-writable"),
        pytest.param({**MASKED, "masked_paths": MASKED_PATHS[1:]}, True, id="one-is-seen"),
        pytest.param({"privileged": True}, False, id="privileged"),
        pytest.param({"namespace_options": {"userns_options": {"mode": 0}}}, False, id="users-of-its-own"),
        pytest.param({"namespace_options": {"userns_options": {"mode": 2}}}, True, id="the-node-s-users"),
    ],
)
def test_container_is_unmasked_where_kubelet_would_mask_more_by_default(
    context: dict[str, Any], unmasked: bool
) -> None:
    assert asked(**context).unmasked is unmasked


def test_masks_are_those_of_kubelet_s_default_and_what_was_asked_for() -> None:
    config = whole.ContainerConfig(linux={"security_context": {"masked_paths": ["/x"]}})
    data, audit = rewrite(Operation.CREATE_CONTAINER, whole.CreateContainerRequest(config=config).SerializeToString())
    context = whole.CreateContainerRequest.FromString(data).config.linux.security_context
    assert list(context.masked_paths) == ["/x", *sorted(MASKED_PATHS)]
    assert list(context.readonly_paths) == sorted(READONLY_PATHS)
    assert ("Unmasked", "Default") in [(entry["old"], entry["new"]) for entry in audit]


def test_class_of_the_cache_is_taken_from_the_sandbox_s_annotations() -> None:
    config = whole.PodSandboxConfig(annotations={f"{CACHE_CLASS}pod": "a", f"{CACHE_CLASS}container.m": "b", "x": "y"})
    request = whole.CreateContainerRequest(config={"metadata": {"name": "m"}}, sandbox_config=config)
    data, _ = rewrite(Operation.CREATE_CONTAINER, request.SerializeToString())
    assert "x" in whole.CreateContainerRequest.FromString(data).sandbox_config.annotations
    assert not [one for one in whole.CreateContainerRequest.FromString(data).sandbox_config.annotations if "rdt" in one]


@pytest.mark.parametrize("operation", [Operation.RUN_POD_SANDBOX, Operation.RESTORE_POD])
def test_classes_of_all_containers_are_taken_from_the_sandbox_that_the_runtime_keeps(operation: Operation) -> None:
    """CRI-O goes by what it kept of the sandbox's annotations, not by those of CreateContainer."""
    classes = {f"{CACHE_CLASS}container.{number}": "a" for number in range(5_000)}
    config = whole.PodSandboxConfig(annotations={f"{CACHE_CLASS}pod": "a", "x": "y"} | classes)
    kind = getattr(whole, f"{operation}Request")
    data, audit = rewrite(operation, kind(config=config).SerializeToString())
    assert "x" in kind.FromString(data).config.annotations
    assert not [one for one in kind.FromString(data).config.annotations if "rdt" in one]
    assert len(audit) < 20, "a line of the log has not as many entries as an author likes"


def test_ports_of_the_node_are_read() -> None:
    config = whole.PodSandboxConfig(port_mappings=[{"container_port": 80}, {"container_port": 1, "host_port": 22}])
    data = whole.RunPodSandboxRequest(config=config).SerializeToString()
    assert codec.Request(Operation.RUN_POD_SANDBOX, data).parts[0].security.host_ports == (22,)


def test_what_reaches_past_a_pod_s_own_namespaces_is_read() -> None:
    node = whole.NamespaceMode.NODE
    found = asked(privileged=True, namespace_options={"network": node, "pid": node, "ipc": node})
    assert (found.privileged, found.host_namespaces) == (True, ("network", "pid", "ipc"))
    assert asked(namespace_options={"pid": whole.NamespaceMode.CONTAINER}).host_namespaces == ()


def test_whether_mounts_are_read_only_is_read() -> None:
    readonly = whole.Mount(host_path="/d", readonly=True)
    both = whole.Mount(host_path="/d", readonly=True, recursive_read_only=True)
    changing = [whole.Mount(host_path="/a"), whole.Mount(host_path="/c", recursive_read_only=True)]
    config = whole.ContainerConfig(mounts=[*changing, whole.Mount(container_path="/b"), readonly, both])
    data = whole.CreateContainerRequest(config=config).SerializeToString()
    mounts = codec.Request(Operation.CREATE_CONTAINER, data).parts[0].security.host_mounts
    assert mounts[:2] == (HostMount("/a"), HostMount("/c", recursive_read_only=True))
    assert mounts[2:] == (HostMount("/d", readonly=True), HostMount("/d", readonly=True, recursive_read_only=True))


def test_mounts_of_v1alpha2_are_read() -> None:
    """Whose Mount has the first three of these fields, with the same numbers."""
    mount = b"\x0a\x02/x\x12\x04/etc\x18\x01"
    config = b"\x3a%c%b" % (len(mount), mount)
    data = b"\x12%c%b" % (len(config), config)
    call = codec.Request(Operation.CREATE_CONTAINER, data)
    assert call.parts[0].security.host_mounts == (HostMount("/etc", readonly=True),)
    kind = whole.CreateContainerRequest
    assert kind.FromString(call.encode()) == kind.FromString(data)


@pytest.mark.parametrize(
    ("added", "ambient", "kept", "kept_ambient"),
    [
        pytest.param(["NET_RAW", "SYS_ADMIN"], [], ["NET_RAW"], [], id="by-name"),
        pytest.param(["BPF"], ["CHOWN", "SYS_ADMIN"], [], ["CHOWN"], id="ambient"),
        pytest.param(["CAP_KILL", "cap_bpf"], [], ["CAP_KILL"], [], id="other-spellings"),
        pytest.param(["ALL"], [], sorted(CAPABILITIES), [], id="all-of-the-list"),
        pytest.param(["KILL", "CHOWN" + 4096 * "N"], [], ["KILL"], [], id="longer-than-any"),
    ],
)
def test_capabilities_are_cut_to_the_list(
    added: list[str], ambient: list[str], kept: list[str], kept_ambient: list[str]
) -> None:
    config = whole.ContainerConfig()
    capabilities = config.linux.security_context.capabilities
    capabilities.add_capabilities.extend(added)
    capabilities.add_ambient_capabilities.extend(ambient)
    data, _ = rewrite(Operation.CREATE_CONTAINER, whole.CreateContainerRequest(config=config).SerializeToString())
    found = whole.CreateContainerRequest.FromString(data).config.linux.security_context.capabilities
    assert (list(found.add_capabilities), list(found.add_ambient_capabilities)) == (kept, kept_ambient)
