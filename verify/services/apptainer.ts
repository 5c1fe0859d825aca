import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const MIRROR = 'http://deb.debian.org/debian';
/** Release of Debian in the root file system, and the newer release that has the package Apptainer. */
const RELEASE = 'trixie';
const PACKAGE_RELEASE = 'sid';

/**
 * Shell script that runs Apptainer from the root file system next to the script, because the C library of the host may be too old for it. The
 * programs and `/etc` come from that root file system, with an account of this user. Every other directory and the program Node come from the
 * host.
 */
const WRAPPER = `#!/bin/sh
export PATH="/usr/sbin:/usr/bin:/sbin:/bin:$PATH"
folder=$(cd "$(dirname "$0")" && pwd -P)
namespaces='--mount --propagation private'
[ "$(id -u)" -eq 0 ] || namespaces="--user --map-current-user --keep-caps $namespaces"
exec unshare $namespaces -- /bin/sh -c '
set -e
tree=$1 uid=$2 gid=$3
shift 3
mount -t tmpfs none "$tree/mnt"
cd "$tree/mnt"
for path in /*; do
  name=\${path#/}
  case $name in
    bin|sbin|lib|lib32|lib64|libx32|usr|etc|var) source=$tree/$name ;;
    *) source=$path ;;
  esac
  if [ -h "$source" ]; then cp -P "$source" "$name"
  elif [ -d "$source" ]; then mkdir "$name"; mount --rbind "$source" "$name"; fi
done
printf "root:x:0:0::/root:/bin/sh\\nfloe:x:%s:%s::/:/bin/sh\\n" "$uid" "$gid" >.passwd
printf "root:x:0:\\nfloe:x:%s:\\n" "$gid" >.group
mount --bind .passwd etc/passwd
mount --bind .group etc/group
[ ! -e /usr/bin/node ] || mount --bind /usr/bin/node usr/bin/node
mkdir .host
pivot_root . .host
umount -l .host
rmdir .host
exec setpriv --inh-caps=-all --ambient-caps=-all -- /usr/bin/apptainer "$@"
' sh "$folder/root" "$(id -u)" "$(id -g)" "$@"
`;

/** Installs Apptainer in a Debian of its own in `folder`, with a script `apptainer` that runs it. Needs root privileges. */
export function installApptainer(folder: string): void {
  const root = join(folder, 'root');
  const program = join(folder, 'apptainer');
  if (!existsSync(join(root, 'usr/bin/apptainer'))) installDebian(folder, root);
  writeFileSync(program, WRAPPER);
  chmodSync(program, 0o755);
}

function installDebian(folder: string, root: string): void {
  if (process.getuid?.() !== 0) throw new Error('apptainer: the installation needs root privileges');
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  if (spawnSync('debootstrap', ['--version']).error !== undefined) {
    run('apt-get', ['install', '-qq', '-y', '--no-install-recommends', 'debootstrap']);
  }
  run('debootstrap', ['--variant=minbase', RELEASE, root, MIRROR]);
  writeFileSync(join(root, 'etc/apt/sources.list.d/package.list'), `deb ${MIRROR} ${PACKAGE_RELEASE} main\n`);
  // Only the package, and dependencies that `RELEASE` lacks, are installed from the other release.
  const preference = 'Package: *\nPin: release a=unstable\nPin-Priority: 100\n';
  writeFileSync(join(root, 'etc/apt/preferences.d/package'), preference);
  // The check of the validity date is off, because a mirror that is a snapshot of an earlier day has an expired release file.
  run('chroot', [root, 'apt-get', '-qq', '-o', 'Acquire::Check-Valid-Until=false', 'update']);
  run('chroot', [root, 'apt-get', '-qq', '-y', '--no-install-recommends', 'install', 'apptainer']);
  writeFileSync(join(root, 'usr/bin/node'), '');
}

function run(command: string, args: readonly string[]): void {
  console.error(`▸ ${command} ${args.join(' ')}`);
  const env = { ...process.env, DEBIAN_FRONTEND: 'noninteractive' };
  const { status, error } = spawnSync(command, args, { stdio: ['ignore', 'ignore', 'inherit'], env });
  if (error !== undefined) throw new Error(`${command}: ${error.message}`);
  if (status !== 0) throw new Error(`${command} ended with status ${status}`);
}
