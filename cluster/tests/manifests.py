"""What the manifests of a folder hold, and the rights that they give."""

import yaml


def load(folder):
    """The objects of its kustomization."""
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [one for file in listed for one in yaml.safe_load_all((folder / file).read_text())]


def named(objects, kind, name):
    """The one of this kind and name."""
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def rights_of(objects, account):
    """(verb, resource), or with the only name that it is for."""
    bindings = [one for one in objects if account in [subject["name"] for subject in one.get("subjects", ())]]
    roles = [named(objects, one["roleRef"]["kind"], one["roleRef"]["name"]) for one in bindings]
    return {
        (verb, resource, name) if name else (verb, resource)
        for role in roles
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
