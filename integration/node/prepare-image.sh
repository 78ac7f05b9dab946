#!/bin/sh -e
# Runs in the new root while a node's image is made: kernel, initramfs, one container image, containerd's config, units.
cd /tmp
mkdir -p /src /w /out /var/scratch /usr/lib/modules /etc/containerd /etc/cni/net.d

# --- the cloud kernel, unpacked rather than installed: no initramfs-tools, no perl

depends() { apt-cache depends "$1" | sed -n "s/.*Depends: \($2\)/\1/p"; }
image=$(depends linux-image-cloud-amd64 'linux-image-[0-9]')
apt-get -q download "$image" $(depends "$image" 'linux-\(binary\|modules\)-[0-9]') # since Linux 7 it is in parts
for package in linux-*.deb; do dpkg-deb -x "$package" kernel; done
mv "$(find kernel -name 'vmlinuz*' -type f | head -1)" /boot/vmlinuz
for modules in kernel/lib/modules kernel/usr/lib/modules; do
  [ ! -d $modules ] || cp -a $modules/. /usr/lib/modules
done
release=$(ls /usr/lib/modules)
depmod "$release"

# --- a small initramfs: the image below, a tmpfs above, or the disk that keeps what changes from one boot to the next

mkdir -p initramfs/modules initramfs/dev initramfs/proc initramfs/image initramfs/memory initramfs/root
cp /bin/busybox initramfs/
number=10
modprobe -S "$release" --show-depends -a virtio_pci virtio_blk virtio_console squashfs overlay ext4 |
  awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r module; do
    case $module in
    *.xz) busybox xzcat "$module" ;;
    *.zst) zstd -dcq "$module" ;;
    *) cat "$module" ;;
    esac >initramfs/modules/$number
    number=$((number + 1))
  done
cat >initramfs/init <<'INIT'
#!/busybox sh
run=/busybox
$run mount -t devtmpfs dev /dev
for module in /modules/*; do $run insmod $module; done
$run mount -t squashfs -o ro /dev/vda /image
$run mount -t proc proc /proc
if $run grep -q node.disk /proc/cmdline; then
  $run mount -t ext4 /dev/vdd /memory
else
  $run mount -t tmpfs -o size=90%,mode=755 memory /memory
fi
$run umount /proc
$run mkdir -p /memory/upper /memory/work /memory/containerd /memory/scratch
$run mount -t overlay -o lowerdir=/image,upperdir=/memory/upper,workdir=/memory/work root /root
# An overlay can't be the upper layer of another one: these two are plain tmpfs.
$run mkdir -p /root/var/lib/containerd
$run mount -o bind /memory/containerd /root/var/lib/containerd
$run mount -o bind /memory/scratch /root/var/scratch
$run mount -o move /dev /root/dev
exec $run switch_root /root /sbin/init
INIT
chmod +x initramfs/init
(cd initramfs && busybox find . | busybox cpio -o -H newc) >/boot/initrd

# --- one container image under two names

mkdir -p layer/bin
cp /bin/busybox layer/bin
for applet in sh sleep cat echo ls dd yes head true false touch mkdir id ps kill grep stat nproc; do
  ln -s busybox layer/bin/$applet
done
tar -C layer -cf layer.tar .
digest=$(sha256sum <layer.tar | cut -c1-64)
cat >config.json <<CONFIG
{"architecture": "amd64", "os": "linux", "config": {"Cmd": ["sleep", "inf"], "Env": ["PATH=/bin"]},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
CONFIG
cat >manifest.json <<'MANIFEST'
[{"Config": "config.json", "RepoTags": ["localhost/pause:1", "localhost/busybox:1"], "Layers": ["layer.tar"]}]
MANIFEST
tar -cf /usr/local/lib/node-images.tar manifest.json config.json layer.tar
rm -rf kernel initramfs layer ./*.deb ./*.tar ./*.json

# --- containerd with the systemd driver, and a network for pods

cat >/etc/containerd/config.toml <<'CONFIG'
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true
CONFIG
cat >/etc/cni/net.d/10-node.conflist <<'NETWORK'
{"cniVersion": "0.4.0", "name": "node", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]}}]}
NETWORK

# --- units

echo node >/etc/hostname
cd /etc/systemd/system
cat >node-images.service <<'UNIT'
[Unit]
After=containerd.service
Requires=containerd.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ctr -n k8s.io images import /usr/local/lib/node-images.tar
[Install]
WantedBy=multi-user.target
UNIT
cat >node-agent.service <<'UNIT'
[Unit]
After=node-images.service
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/node-agent
Environment=HOME=/root LANG=C.UTF-8
Delegate=yes
TasksMax=infinity
LimitNOFILE=1048576
OOMPolicy=continue
[Install]
WantedBy=multi-user.target
UNIT
systemctl enable -q containerd node-images node-agent
systemctl set-default -q multi-user.target
rm -rf timers.target.wants
for unit in getty@tty1 serial-getty@ttyS0 ldconfig systemd-firstboot systemd-journal-catalog-update \
  systemd-journal-flush systemd-logind systemd-random-seed systemd-timesyncd systemd-update-utmp \
  systemd-user-sessions; do
  ln -sf /dev/null $unit.service
done
