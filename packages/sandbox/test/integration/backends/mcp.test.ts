import { spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runtimeBackendSchema } from '@floe-rl/core/schema';
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { describeIf, itIf } from '../../../../../test/skip.ts';
import { jupyterPython } from '../../../../../verify/services/jupyter.ts';
import { findTool } from '../../../../../verify/services/tools.ts';
import type { Runtime } from '../../../src/api/runtime.ts';
import { type ContainerBench, missingBackends, openWorkbench } from '../../backends/container-bench.ts';
import { never, processesMentioning, uniqueSeconds, Workbench } from '../../backends/workbench.ts';

const ipython = jupyterPython();
const noPython = findTool('python3') === null ? 'python3 is not installed: apt-get install -y python3' : null;
const noIpython = ipython === null ? 'IPython is not installed: npm run verify -- install' : null;
const missing = await missingBackends();

describe('the MCP server with the official client', () => {
  let dir: string;
  let client: Client;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-mcp-'));
  });
  afterAll(() => rm(dir, { recursive: true, force: true }));
  beforeEach(async () => {
    const bench = await Workbench.open();
    const runtime = await bench.start('local');
    const [command = '', ...args] = runtime.mcpCommand;
    await runtime.stop();
    await bench.close();
    client = new Client({ name: 'test', version: '1' });
    const PATH = `${ipython === null ? '' : `${join(ipython, '..')}:`}${process.env.PATH}`;
    await client.connect(new StdioClientTransport({ command, args, cwd: dir, env: { PATH, FROM_HARNESS: 'set' } }));
  });
  afterEach(() => client.close());
  const call = (name: string, args: Record<string, unknown>) => client.callTool({ name, arguments: args });
  const text = (value: string, isError = false) => ({ content: [{ type: 'text', text: value }], isError });

  it('names itself and lists its tools with schemas', async () => {
    expect(client.getServerVersion()).toMatchObject({ name: 'floe' });
    const { tools } = await client.listTools();
    const names = ['bash', 'python', 'read_file', 'write_file', 'edit_file', 'list_files'];
    expect(tools.map(({ name }) => name)).toEqual(names);
    for (const { inputSchema } of tools) expect(inputSchema.type).toBe('object');
    await expect(client.ping()).resolves.toEqual({});
  });

  it('runs commands in a shell that keeps its state and has the environment of the harness', async () => {
    expect(await call('bash', { command: 'mkdir -p sub; cd sub; echo $FROM_HARNESS' })).toEqual(text('set'));
    expect(await call('bash', { command: 'pwd; echo e >&2; false' })).toEqual(
      text(`${dir}/sub\ne\n[exit code: 1]`, true),
    );
    const late = await call('bash', { command: 'sleep 1000', timeout_seconds: 0.2 });
    expect(late).toEqual(text('[the time limit passed]\n[exit code: 130]', true));
    const ended = await call('bash', { command: 'exit 0' });
    expect(JSON.stringify(ended)).toContain('[the shell has ended; the next call starts a new one without its state]');
  });

  it('runs calls that arrive together one after the other', async () => {
    const calls = ['echo 1', 'sleep 0.05; echo 2', 'echo 3'].map((command) => call('bash', { command }));
    expect(await Promise.all(calls)).toEqual([text('1'), text('2'), text('3')]);
  });

  it('returns the start and the end of long output', async () => {
    const { content } = await call('bash', { command: 'seq 100000' });
    expect(JSON.stringify(content)).toMatch(
      /"1\\n2\\n.*100000\\n\[\d+ bytes in the middle of the output are left out\]"/,
    );
  });

  it('writes, edits, reads and lists files', async () => {
    await call('write_file', { path: 'files/a', content: '1\n2\n3\n' });
    expect(await call('edit_file', { path: 'files/a', old_text: '2', new_text: 'two' })).toEqual(
      text('replaced 1 occurrence'),
    );
    expect(await call('read_file', { path: 'files/a' })).toEqual(text('1\ntwo\n3\n'));
    const part = await call('read_file', { path: 'files/a', first_line: 2, line_count: 1 });
    expect(part).toEqual(text('two\n\n[continue with first_line 3]'));
    expect(await call('list_files', { path: 'files' })).toEqual(text('a\t8'));
  });

  it('reports what an agent can cause as an error of the tool', async () => {
    const missing = await call('edit_file', { path: 'absent', old_text: 'a', new_text: 'b' });
    expect(missing).toMatchObject({ isError: true, content: [{ text: expect.stringMatching(/^not_found: /) }] });
  });

  it('rejects unknown tools and wrong arguments as the protocol requires', async () => {
    await expect(call('rm', {})).rejects.toMatchObject({ code: -32_602 });
    await expect(call('bash', {})).rejects.toThrow(/command must be a string/);
    await expect(call('read_file', { path: 'x', first_line: 0 })).rejects.toMatchObject({ code: -32_602 });
  });

  it('kills the command when the client cancels the call', async () => {
    const seconds = uniqueSeconds();
    const controller = new AbortController();
    const running = client.callTool(
      { name: 'bash', arguments: { command: `sleep ${seconds}` } },
      { signal: controller.signal },
    );
    while ((await processesMentioning(`sleep\0${seconds}`)).length === 0) await new Promise((r) => setTimeout(r, 20));
    controller.abort('enough');
    await expect(running).rejects.toThrow();
    expect(await call('bash', { command: 'echo next' })).toEqual(text('next'));
    expect(await processesMentioning(`sleep\0${seconds}`)).toEqual([]);
  });

  it('ends with everything that it started when the client disconnects', async () => {
    const seconds = uniqueSeconds();
    await call('bash', { command: `sleep ${seconds} & setsid sleep ${seconds} >/dev/null 2>&1 &` });
    await client.close();
    while ((await processesMentioning(seconds)).length > 0) await new Promise((r) => setTimeout(r, 20));
    expect(await processesMentioning(seconds)).toEqual([]);
  });

  itIf(noPython, 'runs Python with the value of the last expression and tracebacks', async () => {
    expect(await call('python', { code: 'x = 20\nprint("out")\nx + 1' })).toEqual(text('out\n21'));
    const failed = await call('python', { code: 'x / 0' });
    expect(failed).toMatchObject({ isError: true, content: [{ text: expect.stringContaining('ZeroDivisionError') }] });
  });

  itIf(noIpython, 'returns images of Python', async () => {
    const code = 'from IPython.display import Image, display\ndisplay(Image(data=b"\\x89PNG", format="png"))';
    const { content } = await call('python', { code });
    expect(content).toContainEqual({ type: 'image', data: 'iVBORw==', mimeType: 'image/png' });
  });
});

describe('the MCP server with raw messages', () => {
  it('answers what is not JSON-RPC with an error, ignores notifications and responses, and negotiates the version', async () => {
    const bench = await Workbench.open();
    const runtime = await bench.start('local');
    const [command = '', ...args] = runtime.mcpCommand;
    const initialize = (protocolVersion: string) => ({
      ...{ jsonrpc: '2.0', id: protocolVersion, method: 'initialize' },
      params: { protocolVersion, capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
    });
    const lines = [
      'not json',
      '[]',
      '{"jsonrpc":"1.0","id":1,"method":"ping"}',
      '{"jsonrpc":"2.0","method":"notifications/initialized"}',
      '{"jsonrpc":"2.0","id":9,"result":{}}',
      '{"jsonrpc":"2.0","id":"a","method":"resources/list"}',
      JSON.stringify(initialize('2024-11-05')),
      JSON.stringify(initialize('1999-01-01')),
      '[{"jsonrpc":"2.0","id":2,"method":"ping"}]',
    ];
    const child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    let output = '';
    child.stdout.on('data', (data: Buffer) => {
      output += data.toString();
    });
    child.stdin.end(`${lines.join('\n')}\n`);
    await new Promise((resolve) => child.once('close', resolve));
    const replies = output
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line));
    const brief = replies.map(({ id, error, result }) => [id, error?.code ?? result.protocolVersion ?? result]);
    expect(brief).toEqual(
      expect.arrayContaining([
        [null, -32_700],
        [null, -32_600],
        ['a', -32_601],
        ['2024-11-05', '2024-11-05'],
        ['1999-01-01', '2025-11-25'],
        [2, {}],
      ]),
    );
    expect(brief).toHaveLength(6);
    await runtime.stop();
    await bench.close();
  });
});

describe.each(runtimeBackendSchema.options)('the MCP server in the %s runtime', (backend) => {
  describeIf(missing[backend], 'as a program of the sandbox', () => {
    let opened: ContainerBench;
    let runtime: Runtime;
    beforeAll(async () => {
      opened = await openWorkbench(backend, ['bash']);
      runtime = await opened.start(backend);
    }, 120_000);
    afterAll(async () => {
      await runtime?.stop();
      await opened?.close();
    });

    it('is started by the command line of the runtime', async () => {
      const request = { jsonrpc: '2.0', id: 1, method: 'tools/call' };
      const params = { name: 'write_file', arguments: { path: 'from-mcp', content: 'text' } };
      const stdin = `${JSON.stringify({ ...request, params })}\n`;
      // The server ends when its input does, so the input stays open until the file exists.
      const script = '{ cat; while [ ! -e from-mcp ]; do :; done; } | "$@"';
      const { stdout } = await runtime.exec(
        { command: ['bash', '-c', script, 'sh', ...runtime.mcpCommand], stdin },
        never,
      );
      expect(stdout).toContain('wrote ');
      expect((await runtime.readFile('from-mcp', 10, never))?.toString()).toBe('text');
    });
  });
});
