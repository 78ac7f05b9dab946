# What packages are made of, fetched once: sourced by packaging/deb/build and packaging/bundle/build, which have set $root,
# the checkout, and $cache, where it is kept. Runs on Debian 12 or later, on amd64 or arm64, for either.
native=$(dpkg --print-architecture)

# fetched DIRECTORY WANTED: whether DIRECTORY was filled by `finish` for the same WANTED.
fetched() { [ "$(cat "$1/fetched" 2>/dev/null)" = "$2" ]; }
finish() { echo "$2" >"$1/fetched"; }

need() { # PROGRAM:PACKAGE...
  missing=
  for tool; do command -v "${tool%:*}" >/dev/null || missing="$missing ${tool#*:}"; done
  /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
  [ -z "$missing" ] || die "missing:$missing; as root: apt-get install$missing"
}

machine_of() { # architecture $1 as the kernel and the wheels' names have it
  case $1 in
  amd64) echo x86_64 ;;
  arm64) echo aarch64 ;;
  *) die "architecture $1: there are amd64 and arm64" ;;
  esac
}

# What builds the one dependency that comes as source only, and unpacks the others.
make_pip() {
  wanted=$(sha256sum <"$root/requirements-build.lock")
  pip="$cache/pip/bin/python -m pip -q --disable-pip-version-check --no-input"
  fetched "$cache/pip" "$wanted" && return
  say "fetching what builds the dependencies"
  /usr/bin/python3 -m venv --clear "$cache/pip"
  $pip install --require-hashes -r "$root/requirements-build.lock"
  finish "$cache/pip" "$wanted"
}

fetch_wheels() { # of Python $1 for architecture $2; $platforms says to pip which wheels these are
  wheels=$cache/wheels-$1-$2
  machine=$(machine_of "$2")
  platforms="--platform manylinux2014_$machine --platform manylinux_2_28_$machine"
  wanted=$(sha256sum <"$root/requirements.lock")
  fetched "$wheels" "$wanted" && return
  say "fetching the wheels of Python $1 for $2"
  rm -rf "$wheels"
  $pip download --no-deps --require-hashes --no-build-isolation --only-binary :all: --no-binary cgroupspy \
    --implementation cp --python-version "$1" $platforms --dest "$wheels" -r "$root/requirements.lock"
  finish "$wheels" "$wanted"
}

unpack() { # below directory $1, for architecture $2, of Debian release $3, the packages $4; what they have there
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/*$' | head -n 1)
  rm -rf "$1"
  mkdir "$1"
  # A mirror may be a snapshot, whose index of testing is of no date that holds any more; it is signed all the same.
  mmdebstrap -q --variant=extract --architectures="$2" --aptopt='Acquire::Check-Valid-Until "false"' \
    --include="$4" "$3" - "deb $mirror $3 main" |
    tar -x --no-same-owner --exclude=./dev -C "$1"
}

# Bytecode is read by the very version that made it only, on whatever processor. The release's Python runs by its own
# loader and libraries, so no root, no chroot, no container and no emulator is needed.
fetch_python() { # $1 of release $2, to run here
  python=$cache/python-$2
  fetched "$python" "$1" && return
  say "fetching Python $1 of $2"
  unpack "$python" "$native" "$2" "base-files,python$1-minimal"
  finish "$python" "$1"
}
