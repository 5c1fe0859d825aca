import { existsSync, mkdirSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import type { RuntimeBackend } from '@floe-rl/core/schema';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { dockerMissing } from '../../../../../verify/services/docker-daemon.ts';
import { podmanMissing } from '../../../../../verify/services/podman-service.ts';
import type { Runtime } from '../../../src/api/runtime.ts';
import { architectureOf } from '../../../src/backends/bubblewrap/syscall-filter.ts';
import { type Architecture, DENIED_CALLS } from '../../../src/backends/denied-calls.ts';
import { type ContainerBench, openWorkbench } from '../../backends/container-bench.ts';
import { bubblewrapMissing, never } from '../../backends/workbench.ts';

const architecture: Architecture = architectureOf(process.arch) ?? 'x86_64';
const noPerl = existsSync('/usr/bin/perl') ? null : 'perl is not installed: apt-get install -y perl';
const backends = [
  ['bubblewrap', (await bubblewrapMissing()) ?? noPerl],
  ['docker', (await dockerMissing()) ?? noPerl],
  ['podman', podmanMissing() ?? noPerl],
] as const;

/**
 * Calls that a container engine does not deny when its libseccomp is older than the call and does not know its name. They need capabilities
 * that no command in a container has.
 */
const NEWER_THAN_ENGINE = ['open_tree_attr'];

/** Error numbers of Linux. */
const ERRNO = { EPERM: 1, ENOSYS: 38, EAFNOSUPPORT: 97, ESRCH: 3 };

/** Perl program that makes a system call. Arguments: its number and its arguments. Prints `ok` or the error number. */
const CALL = 'my @a = map { int } @ARGV; print syscall($a[0], @a[1 .. 6]) == -1 ? $! + 0 : "ok"';

/** The numbers of the system calls `ptrace` and `seccomp` on each architecture. The sandbox allows both calls. */
const PTRACE = { x86_64: 101, aarch64: 117 }[architecture];
const SECCOMP = { x86_64: 317, aarch64: 277 }[architecture];

/** Operation of the system call `seccomp` that returns whether filters may use a given action. */
const SECCOMP_GET_ACTION_AVAIL = 2;

function numberOf(name: string): number {
  const call = DENIED_CALLS.find((each) => each.name === name);
  if (call === undefined) throw new Error(`${name} is not in the table`);
  return call.numbers[architecture];
}

function suite(backend: RuntimeBackend): void {
  let opened: ContainerBench;
  let runtime: Runtime;
  beforeAll(async () => {
    opened = await openWorkbench(backend, ['perl', 'grep']);
    runtime = await opened.start(backend, { storage_mb: 16 });
  }, 120_000);
  afterAll(async () => {
    await runtime?.stop();
    await opened?.close();
  });

  /** Makes a system call in the sandbox. Resolves with `ok` or the number of the error. */
  const call = async (number: number, args: readonly (number | bigint)[]): Promise<string> => {
    const padded = [number, ...args, ...Array(6 - args.length).fill(0)].map(String);
    // Without this variable, Perl prints a warning in an image without locales.
    const env = { PERL_BADLANG: '0' };
    const ended = await runtime.exec({ command: ['/usr/bin/perl', '-e', CALL, ...padded], env }, never);
    expect(ended.stderr).toBe('');
    return ended.stdout;
  };

  it.each(DENIED_CALLS)('is refused $name with $errno', async ({ name, numbers, errno }) => {
    // All arguments are -1, which sets every flag of the first argument. Without the filter, most of these calls would fail with another
    // error.
    const ended = await call(numbers[architecture], Array(6).fill(-1));
    if (backend !== 'bubblewrap' && NEWER_THAN_ENGINE.includes(name)) expect(ended).not.toBe('ok');
    else expect(ended).toBe(String(ERRNO[errno]));
  });

  it.each([
    ['AF_PACKET', 17],
    ['AF_CAN', 29],
    ['AF_BLUETOOTH', 31],
    ['AF_ALG', 38],
    ['AF_VSOCK', 40],
    ['AF_XDP', 44],
  ])('can create no socket of the family %s', async (_, family) => {
    const datagram = 2;
    expect(await call(numberOf('socket'), [family, datagram])).toBe(String(ERRNO.EAFNOSUPPORT));
    const highBits = 2n ** 40n;
    expect(await call(numberOf('socket'), [highBits + BigInt(family), datagram])).toBe(String(ERRNO.EAFNOSUPPORT));
  });

  it.each([
    ['AF_UNIX', 1],
    ['AF_INET', 2],
    ['AF_INET6', 10],
    ['AF_NETLINK', 16],
  ])('can create a socket of the family %s', async (_, family) => {
    expect(await call(numberOf('socket'), [family, 2])).toBe('ok');
  });

  it.each([
    ['a mount', 0x0002_0000],
    ['a cgroup', 0x0200_0000],
    ['a host name', 0x0400_0000],
    ['an IPC', 0x0800_0000],
    ['a user', 0x1000_0000],
    ['a process', 0x2000_0000],
    ['a network', 0x4000_0000],
  ])('can create %s namespace neither with unshare nor with clone', async (_, flag) => {
    const childSignal = 17;
    expect(await call(numberOf('unshare'), [flag])).toBe(String(ERRNO.EPERM));
    expect(await call(numberOf('clone'), [flag | childSignal])).toBe(String(ERRNO.EPERM));
  });

  it('can still give up what a thread shares with others', async () => {
    const [files, fileSystem] = [0x400, 0x200];
    expect(await call(numberOf('unshare'), [files | fileSystem])).toBe('ok');
  });

  it('can use a debugger and its own filters, as some harnesses and tests do', async () => {
    const traceMe = 0;
    expect(await call(PTRACE, [traceMe])).toBe('ok');
    const filter = `my $action = pack("L", 0); print syscall(${SECCOMP}, ${SECCOMP_GET_ACTION_AVAIL}, 0, $action)`;
    expect((await runtime.exec({ command: ['/usr/bin/perl', '-e', filter] }, never)).stdout).toBe('0');
  });

  it('finds no process outside of the sandbox to trace', async () => {
    const attach = 16;
    expect(await call(PTRACE, [attach, process.pid])).toBe(String(ERRNO.ESRCH));
  });

  it('has a filter with and without the proxy relay', async () => {
    const status = { command: 'grep Seccomp: /proc/self/status' };
    expect((await runtime.exec(status, never)).stdout).toBe('Seccomp:\t2\n');
    const dir = join(opened.bench.dir, 'proxy');
    mkdirSync(dir);
    const socketPath = join(dir, 's');
    const proxy = createServer(() => {});
    await new Promise<void>((resolve) => proxy.listen(socketPath, resolve));
    const other = await opened.start(backend, {}, { proxy: { socketPath, tcpOrigin: 'unused' } });
    expect((await other.exec({ ...status, withProxy: true }, never)).stdout).toBe('Seccomp:\t2\n');
    await other.stop();
    await new Promise((resolve) => proxy.close(resolve));
  });
}

for (const [backend, missing] of backends) {
  describeIf(missing, `a command in a sandbox of the back end ${backend}`, () => suite(backend));
}
