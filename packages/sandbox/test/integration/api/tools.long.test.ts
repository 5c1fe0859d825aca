import { runtimeBackendSchema } from '@floe-rl/core/schema';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import type { Runtime } from '../../../src/api/runtime.ts';
import type { RuntimeTools, ShellResult, ToolProcess } from '../../../src/api/tools.ts';
import { type ContainerBench, missingBackends, openWorkbench } from '../../backends/container-bench.ts';
import { never, processesMentioning, uniqueSeconds } from '../../backends/workbench.ts';

const missing = await missingBackends();
/** Programs that the commands of the tests use, in addition to the programs of every image. */
const PROGRAMS = [
  'bash',
  'chmod',
  'env',
  'ln',
  'mkfifo',
  'od',
  'readlink',
  'seq',
  'stat',
  'script',
  'setsid',
  'sleep',
  'stty',
  'tr',
  'tty',
  'yes',
];
const MINUTE = { timeoutMs: 60_000 };
const KILLED_SOON = { timeoutMs: 300 };

describe.each(runtimeBackendSchema.options)('tools in the %s runtime', (backend) => {
  describeIf(missing[backend], 'with a shell and files', () => {
    let opened: ContainerBench;
    let runtime: Runtime;
    let tools: RuntimeTools;
    let shell: ToolProcess<ShellResult>;
    beforeAll(async () => {
      opened = await openWorkbench(backend, PROGRAMS);
      runtime = await opened.start(backend, { env: { FROM_SPEC: 'spec' }, max_output_mb: 0.01 });
    }, 120_000);
    afterAll(async () => {
      await runtime?.stop();
      await opened?.close();
    });
    beforeEach(async () => {
      tools = await runtime.openTools(never);
      shell = tools.shell();
    });
    afterEach(() => tools.close());
    const run = (command: string, options = MINUTE) => shell.run(command, options, never);

    describe('shell', () => {
      it('returns exit code, output and errors of a command', async () => {
        expect(await run("echo out; echo 'e r' >&2; (exit 7)")).toMatchObject({
          ...{ exitCode: 7, signal: null, stdout: 'out\n', stderr: 'e r\n' },
          ...{ droppedBytes: 0, timedOut: false, isFirst: true, processEnd: null },
        });
      });

      it('keeps directory, variables, functions and exit code between commands', async () => {
        await run('mkdir -p "it\'s" && cd "it\'s"; X=5; f() { echo "f $1"; }; false');
        const { stdout, isFirst } = await run('echo $?; pwd; f $X; echo $FROM_SPEC');
        expect(stdout).toBe(`1\n${runtime.paths.workdir}/it's\nf 5\nspec\n`);
        expect(isFirst).toBe(false);
      });

      it('runs commands of many lines, with here documents, syntax errors and bytes that are not ASCII', async () => {
        expect((await run('cat <<EOF\nä 漢字\nEOF\nfor i in 1 2\ndo echo $i\ndone # end')).stdout).toBe(
          'ä 漢字\n1\n2\n',
        );
        expect(await run('if then')).toMatchObject({ exitCode: 2, processEnd: null });
        expect((await run(`echo ${'long '.repeat(20_000)}| wc -c`)).stdout.trim()).toBe('100000');
        expect((await run(`: ${'x'.repeat(200_000)}; echo end`)).stdout).toBe('end\n');
      });

      it('gives commands an empty stdin and only the usual file descriptors', async () => {
        expect((await run('cat; ls /proc/self/fd | tr "\\n" " "')).stdout).toMatch(/^0 1 2 \d+ $/);
      });

      it('keeps the start and the end of a flood of output and counts the rest', async () => {
        const { stdout, droppedBytes } = await run('echo begin; yes middle | head -c 20000000; echo end');
        expect(stdout).toMatch(/^begin\n.*end\n$/s);
        expect(stdout.length + droppedBytes).toBe(20_000_000 + 'begin\nend\n'.length);
        expect(stdout.length).toBeLessThanOrEqual(0.01 * 1024 * 1024);
      });

      it('returns huge lines, control characters and invalid UTF-8', async () => {
        const { stdout } = await run("printf '\\036\\036\\377\\001'; head -c 5000 /dev/zero | tr '\\0' x");
        expect(stdout).toBe(`\x1e\x1e\ufffd\x01${'x'.repeat(5_000)}`);
      });

      it('interrupts a command and keeps the state', async () => {
        await run('X=kept');
        const seconds = uniqueSeconds();
        const running = run(`sleep ${seconds}; echo after`);
        await untilRunning(seconds);
        shell.interrupt();
        expect(await running).toMatchObject({ exitCode: 130, stdout: '', processEnd: null, timedOut: false });
        expect((await run('echo $X')).stdout).toBe('kept\n');
      });

      it('interrupts a command that has not started', async () => {
        const running = run('while :; do :; done');
        shell.interrupt();
        await untilIdle(() => shell.interrupt(), running);
        expect(await running).toMatchObject({ processEnd: null });
        expect((await run('echo next')).stdout).toBe('next\n');
      });

      it.each([
        ['a loop of the shell', 'while :; do :; done'],
        ['a program', 'sleep 1000; echo after'],
        ['a program that ignores interrupts', '(trap "" INT TERM; sleep 1000)'],
      ])('ends %s at the time limit and keeps the state', async (_what, command) => {
        await run('X=kept');
        expect(await run(command, KILLED_SOON)).toMatchObject({ timedOut: true, processEnd: null });
        expect((await run('echo $X')).stdout).toBe('kept\n');
      });

      it('replaces a shell that ignores the time limit', async () => {
        await run('X=lost');
        const ended = await run('trap "" INT; while :; do :; done', KILLED_SOON);
        expect(ended).toMatchObject({ timedOut: true, processEnd: 'killed', exitCode: null, signal: 'SIGKILL' });
        expect(await run('echo "[$X]"')).toMatchObject({ stdout: '[]\n', isFirst: true });
      });

      it('reports the end of the shell with its exit code and starts another one', async () => {
        expect(await run('echo out; exit 3')).toMatchObject({ exitCode: 3, stdout: 'out\n', processEnd: 'exited' });
        expect(await run('kill -KILL $$')).toMatchObject({ signal: 'SIGKILL', processEnd: 'exited', isFirst: true });
        expect(await run('echo $0')).toMatchObject({ exitCode: 0, isFirst: true });
      });

      it('loses its state in a restart', async () => {
        await run('X=lost; cd /');
        await shell.restart(never);
        expect((await run('echo "[$X]"; pwd')).stdout).toBe(`[]\n${runtime.paths.workdir}\n`);
      });

      it('leaves background processes running, or ends those of a command when asked', async () => {
        const [kept, ended, detached] = [uniqueSeconds(), uniqueSeconds(), uniqueSeconds()];
        await run(`sleep ${kept} &`);
        const command = `(sleep ${ended}) & setsid sleep ${detached} >/dev/null 2>&1 & echo started`;
        expect((await run(command, { ...MINUTE, killsRest: true } as typeof MINUTE)).stdout).toContain('started');
        expect(await processesMentioning(ended)).toEqual([]);
        expect(await processesMentioning(detached)).toEqual([]);
        expect(await processesMentioning(kept)).not.toEqual([]);
        await shell.close();
        expect(await processesMentioning(kept)).toEqual([]);
      });

      it('returns what a background process writes with a later command', async () => {
        await run('mkfifo go went; { read x <go; echo late; echo x >went; } &');
        const { stdout } = await run('echo x >go; read x <went; echo now');
        expect(stdout).toMatch(/late\n.*now\n/s);
      });

      it('rejects a second command while one is running', async () => {
        const running = run('read x <busy-pipe; echo done'.replace('read', 'mkfifo busy-pipe; echo >waiting; read'));
        await untilFile('waiting');
        await expect(run('true')).rejects.toMatchObject({ name: 'ToolError', reason: 'busy' });
        const other = tools.shell();
        await other.run('echo >busy-pipe', MINUTE, never);
        expect((await running).stdout).toBe('done\n');
      });

      it('kills the command when the signal aborts and rejects with its reason', async () => {
        const seconds = uniqueSeconds();
        const controller = new AbortController();
        const reason = new Error('enough');
        const running = shell.run(`echo >aborting; sleep ${seconds}`, MINUTE, controller.signal);
        await untilFile('aborting');
        controller.abort(reason);
        await expect(running).rejects.toBe(reason);
        expect(await processesMentioning(seconds)).toEqual([]);
      });

      it('ends every process when the tools are closed', async () => {
        const [plain, detached] = [uniqueSeconds(), uniqueSeconds()];
        await run(`sleep ${plain} & setsid env -i sleep ${detached} >/dev/null 2>&1 & sleep 0.1`);
        await tools.close();
        expect(await processesMentioning(plain)).toEqual([]);
        const left = await processesMentioning(detached);
        // The local back end needs a control group to find such a process, so here the test ends the process.
        if (backend === 'local') for (const line of left) process.kill(Number.parseInt(line, 10));
        else expect(left).toEqual([]);
        await expect(run('true')).rejects.toMatchObject({ name: 'ToolError' });
      });
    });

    describe('shell without bash', () => {
      it('runs commands, keeps the state, and survives errors and interrupts', async () => {
        const { workdir } = runtime.paths;
        await run('mkdir only-sh; for p in sh cat sleep; do ln -s "$(command -v $p)" only-sh/$p; done');
        const sh = tools.shell({ env: { PATH: `${workdir}/only-sh` } });
        const first = await sh.run('X=5; echo $0; (exit 4)', MINUTE, never);
        expect(first).toMatchObject({ exitCode: 4, processEnd: null });
        expect(first.stdout).not.toContain('bash');
        expect(await sh.run('if then', MINUTE, never)).toMatchObject({ exitCode: 2, processEnd: null });
        expect(await sh.run('sleep 1000; echo after', KILLED_SOON, never)).toMatchObject({
          ...{ exitCode: 130, timedOut: true, stdout: '', processEnd: null },
        });
        expect((await sh.run(`: ${'x'.repeat(20_000)}; cat; echo $X`, MINUTE, never)).stdout).toBe('5\n');
      });
    });

    describe('shell with a hostile command', () => {
      it.each([
        ['prints a marker of an old command', "printf '\\036%s' 00000000000000000000000000000000; echo x"],
        ['redefines what the shell runs', 'printf() { :; }; echo() { :; }; eval() { :; }; cat <<<x'],
        ['closes its outputs and opens others', 'exec 3>&1 1>&- 2>&-; echo x >&3'],
      ])('that %s gets the right result, and so does the next', async (_what, command) => {
        expect((await run(command)).stdout).toMatch(/x\n$/);
      });

      it.each([
        ['guesses the end', 'echo "E 00000000000000000000000000000000 0 0"', 'broken'],
        ['writes something else', 'echo garbage', 'broken'],
        ['writes without end', 'head -c 100000 /dev/zero', 'broken'],
      ])('that finds the control stream and %s loses its shell', async (_what, command, processEnd) => {
        const found = 'for fd in /proc/$$/fd/*; do case $fd in */97|*/7) fds=$fd;; esac; done';
        // A socket cannot be opened by its path in /proc, so the command runs in the shell itself, which has saved the descriptor.
        const saved = `${found}; for n in 10 11 12 13 14; do { ${command} >&$n; } 2>/dev/null; done; sleep 1000`;
        expect(await run(saved)).toMatchObject({ processEnd, timedOut: false });
        expect(await run('echo next')).toMatchObject({ stdout: 'next\n', isFirst: true });
      });

      it('that closes the control stream loses its shell', async () => {
        const ended = await run('for n in 10 11 12 13 14 97; do eval "exec $n>&-"; done; sleep 1000');
        expect(ended).toMatchObject({ processEnd: 'broken' });
        expect(await run('echo next')).toMatchObject({ stdout: 'next\n', isFirst: true });
      });

      it('that floods in the background does not hold up the next command', async () => {
        await run('yes & sleep 0.2');
        const next = await run('kill %1; wait; echo end');
        expect(next).toMatchObject({ exitCode: 0, processEnd: null });
        expect(next.stdout).toContain('end\n');
      });
    });

    describe('shell with a terminal', () => {
      const terminal = () => tools.shell({ pty: true });

      it('runs commands in a terminal with one output, and keeps the state', async () => {
        const pty = terminal();
        const first = await pty.run('X=5; [ -t 0 ] && [ -t 1 ] && tty >&2; (exit 4)', MINUTE, never);
        expect(first).toMatchObject({ exitCode: 4, stderr: '' });
        expect(first.stdout).toContain('/dev/');
        expect((await pty.run('echo $X', MINUTE, never)).stdout).toBe('5\n');
        expect((await pty.run(`: ${'x'.repeat(20_000)}; echo end`, MINUTE, never)).stdout).toBe('end\n');
      });

      it('passes typed text to the command', async () => {
        const pty = terminal();
        const running = pty.run('echo >typing; read line; echo "got $line"', MINUTE, never);
        await untilFile('typing');
        pty.type('hello\n');
        expect((await running).stdout).toContain('got hello\n');
      });

      it('interrupts the foreground program only', async () => {
        const pty = terminal();
        const [seconds, foreground] = [uniqueSeconds(), uniqueSeconds()];
        const running = pty.run(`sleep ${seconds} & sleep ${foreground}; echo after`, MINUTE, never);
        for (const program of [seconds, foreground]) await untilRunning(program);
        pty.interrupt();
        expect(await running).toMatchObject({ exitCode: 130, processEnd: null });
        expect(await processesMentioning(seconds)).not.toEqual([]);
        await pty.close();
        expect(await processesMentioning(seconds)).toEqual([]);
      });
    });

    describe('file', () => {
      it('writes files with their parents, and reads them in parts', async () => {
        await tools.writeFile('new/ä dir/file', '1\n2\n3\n4', never);
        const read = (options: { firstLine?: number; lineCount?: number }) =>
          tools.readFile('new/ä dir/file', options, never);
        expect(await read({})).toEqual({ text: '1\n2\n3\n4', nextLine: null, isCut: false });
        expect(await read({ firstLine: 2, lineCount: 2 })).toEqual({ text: '2\n3\n', nextLine: 4, isCut: false });
        expect(await read({ firstLine: 4, lineCount: 9 })).toEqual({ text: '4', nextLine: null, isCut: false });
        expect(await read({ firstLine: 9 })).toEqual({ text: '', nextLine: null, isCut: false });
        expect((await run('cat "new/ä dir/file"')).stdout).toBe('1\n2\n3\n4');
      });

      it('reads complete lines up to the maximum, and cuts a line that is longer', async () => {
        await run("{ head -c 3000000 /dev/zero | tr '\\0' x; echo; yes 0123456789abcde | head -n 100000; } >long");
        const first = await tools.readFile('long', {}, never);
        expect([first.text.length, first.nextLine, first.isCut]).toEqual([1024 * 1024, 2, true]);
        const second = await tools.readFile('long', { firstLine: 2 }, never);
        expect([second.text.length, second.nextLine, second.isCut]).toEqual([1024 * 1024, 2 + 65_536, false]);
      });

      it('keeps the mode of a file that it replaces, and follows links in the sandbox', async () => {
        await run('echo old >tool; chmod 750 tool; ln -s tool link');
        await tools.writeFile('link', 'new', never);
        expect((await run('cat tool; stat -c %a tool; readlink link')).stdout).toBe('new750\ntool\n');
      });

      it('edits text that occurs once, and reports other numbers', async () => {
        await tools.writeFile('edited', Buffer.from('a\xff b\nb c\n', 'latin1'), never);
        expect(await tools.editFile('edited', { oldText: 'b\nb', newText: 'ä' }, never)).toBe(1);
        expect((await run('od -An -tx1 edited')).stdout.trim()).toBe('61 ff 20 c3 a4 20 63 0a');
        const edit = (oldText: string, replacesAll = false) =>
          tools.editFile('edited', { oldText, newText: '_', replacesAll }, never);
        await expect(edit('absent')).rejects.toMatchObject({ name: 'ToolError', reason: 'no_match' });
        await expect(edit('')).rejects.toMatchObject({ reason: 'no_match' });
        await expect(edit(' ')).rejects.toMatchObject({ reason: 'several_matches' });
        expect(await edit(' ', true)).toBe(2);
      });

      it('lists a directory with types and sizes', async () => {
        await run('mkdir -p listed/sub; cd listed; printf 12345 >five; ln -s /etc link; mkfifo pipe; cd ..');
        expect(await tools.list('listed', never)).toEqual({
          entries: [
            { name: 'five', type: 'file', bytes: 5 },
            { name: 'link', type: 'link', bytes: null },
            { name: 'pipe', type: 'other', bytes: null },
            { name: 'sub', type: 'directory', bytes: null },
          ],
          isPartial: false,
        });
      });

      it('lists a part of a directory with too many entries', async () => {
        await run('mkdir many; cd many; for i in $(seq 2001); do : >$i; done');
        const { entries, isPartial } = await tools.list('many', never);
        expect([entries.length, isPartial]).toEqual([2_000, true]);
      });

      it('reports what is missing or of another type, and never waits for a FIFO', async () => {
        await run('mkfifo fifo; mkdir -p folder; ln -sf absent dangling');
        const reasonOf = (work: Promise<unknown>) => expect(work).rejects;
        await reasonOf(tools.readFile('absent', {}, never)).toMatchObject({ reason: 'not_found' });
        await reasonOf(tools.readFile('fifo', {}, never)).toMatchObject({ reason: 'not_a_file' });
        await reasonOf(tools.readFile('folder', {}, never)).toMatchObject({ reason: 'not_a_file' });
        await reasonOf(tools.readFile('dangling', {}, never)).toMatchObject({ reason: 'not_found' });
        await reasonOf(tools.writeFile('fifo', 'x', never)).toMatchObject({ reason: 'not_a_file' });
        await reasonOf(tools.writeFile('folder', 'x', never)).toMatchObject({ reason: 'not_a_file' });
        await reasonOf(tools.list('absent', never)).toMatchObject({ reason: 'not_found' });
        await reasonOf(tools.list('fifo', never)).toMatchObject({ reason: 'not_a_directory' });
      });

      it('refuses content that is too long', async () => {
        const long = Buffer.alloc(16 * 1024 * 1024 + 1);
        await expect(tools.writeFile('long', long, never)).rejects.toMatchObject({ reason: 'too_large' });
        await run('head -c 16777217 /dev/zero >long');
        const edit = tools.editFile('long', { oldText: 'a', newText: 'b' }, never);
        await expect(edit).rejects.toMatchObject({ reason: 'too_large' });
      });

      it('never reaches a file outside of the sandbox through a link', async () => {
        await run(`ln -s ${opened.bench.dir} out`);
        const code = backend === 'local' ? 'outside' : 'not_found';
        await expect(tools.list('out', never)).rejects.toMatchObject({ reason: code });
        await expect(tools.writeFile('out/x', 'x', never)).rejects.toMatchObject({ name: 'ToolError' });
      });
    });

    async function untilFile(path: string): Promise<void> {
      while ((await runtime.readFile(path, 100, never)) === null)
        await new Promise((resolve) => setTimeout(resolve, 10));
    }
  });
});

/** Waits until a program with this text in its command line runs. An interrupt before the program has started can be lost. */
async function untilRunning(text: string): Promise<void> {
  while ((await processesMentioning(text)).length === 0) await new Promise((resolve) => setTimeout(resolve, 10));
}

/** Calls `act` until `work` has settled. */
async function untilIdle(act: () => void, work: Promise<unknown>): Promise<void> {
  let isDone = false;
  work.finally(() => {
    isDone = true;
  });
  while (!isDone) {
    act();
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
