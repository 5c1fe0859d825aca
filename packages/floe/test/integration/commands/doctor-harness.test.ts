import { once } from 'node:events';
import { watch } from 'node:fs';
import { mkdir, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type AgentSpec, agentSpecSchema } from '@floe-rl/core/schema';
import { harnessStatus } from '@floe-rl/node';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { oneCall } from '../../../../../test/integration/stack.ts';
import { harnessMissing, itIf } from '../../../../../test/skip.ts';
import { chooseBackend } from '../../../src/commands/backend.ts';
import {
  examineHarness,
  type Finding,
  findingsOf,
  type Probe,
  probeAgent,
} from '../../../src/commands/doctor-harness.ts';
import { harnessDir } from '../../../src/commands/home.ts';

const installed = (await harnessStatus('pi', harnessDir())).installed;

const parts = (findings: readonly Finding[]): string[] =>
  findings.map(({ part, ok }) => `${ok ? 'ok' : 'fail'} ${part}`);
const GOOD = ['ok installed', 'ok runtime', 'ok sandbox', 'ok request', 'ok reply', 'ok session', 'ok tokens'];

function shell(command: string): { readonly agent: AgentSpec; readonly image: null } {
  return { agent: agentSpecSchema.parse({ harness: 'shell', custom_shell: command }), image: null };
}

describe('doctor --harness', () => {
  const machine = {
    harnessDir: '',
    chooseBackend: async () => ({ backend: 'local' as const, problem: null }),
    signal: new AbortController().signal,
  };
  let dir: string;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-doctor-test-'));
    machine.harnessDir = dir;
  });
  afterAll(() => rm(dir, { recursive: true, force: true }));

  const examine = (customShell: string, dialect?: string): Promise<Finding[]> =>
    examineHarness({ harness: 'shell', customShell, dialect }, machine);

  it('passes every check with a program that calls its model', async () => {
    const findings = await examine(oneCall('hi'));
    expect(parts(findings)).toEqual(GOOD);
    expect(findings.at(-1)?.text).toMatch(/^\d+ trained, all as sampled$/);
  });

  it('shows the end of the output of a program that never called its model', async () => {
    const findings = await examine('echo no such option --model; echo see --help >&2; exit 7');
    expect(parts(findings)).toEqual([...GOOD.slice(0, 3), 'fail request']);
    expect(findings.at(-1)).toMatchObject({
      text: 'none reached the proxy; exit code 7',
      remedy: expect.stringMatching(/"no such option --model" and "see --help"/),
    });
  });

  it('reports refused calls and absent calls with different texts', async () => {
    const findings = await examine(oneCall('hi').replace('policy', 'another-model'));
    expect(parts(findings)).toEqual([...GOOD.slice(0, 3), 'fail request']);
    expect(findings.at(-1)?.text).toMatch(/^none was answered: .*another-model/);
  });

  it('reports a request in another dialect than the chosen one', async () => {
    const findings = await examine(oneCall('hi'), 'anthropic');
    expect(findings.at(-1)).toMatchObject({ ok: false, text: 'in openai_chat instead of anthropic' });
  });

  it('reports a failed exit of a program whose call was answered', async () => {
    const findings = await examine(`${oneCall('hi')}; exit 5`);
    expect(parts(findings)).toEqual([...GOOD.slice(0, 5), 'fail session']);
    expect(findings.at(-1)?.text).toMatch(/^agent_error: harness_failed: .*exited with 5/);
  });

  it('names the option with the command of a harness that requires one', async () => {
    await expect(examineHarness({ harness: 'shell' }, machine)).rejects.toThrow(/--custom-shell/);
  });

  it('runs the agent in the image that is given', async () => {
    const findings = await examineHarness({ harness: 'shell', customShell: 'true', image: '/no/such/image' }, machine);
    expect(findings.at(-1)).toMatchObject({ part: 'sandbox', ok: false, text: expect.stringMatching(/image/) });
  });

  it('shows how to install a missing harness, and starts nothing', async () => {
    const withoutBackend = { ...machine, chooseBackend: () => Promise.reject(new Error('no runtime may be chosen')) };
    const findings = await examineHarness({ harness: 'pi' }, withoutBackend);
    expect(findings).toMatchObject([{ part: 'installed', ok: false, remedy: 'floe harness install pi' }]);
  });

  it('requires no installation of a program that is in the image', async () => {
    const settings = '{"program":"/no/such/mini"}';
    const [installation] = await examineHarness({ harness: 'mini_swe_agent', settings }, machine);
    expect(installation).toMatchObject({ part: 'installed', ok: true, text: 'nothing to install' });
  });

  it('stops everything when it is aborted', async () => {
    const stopping = new AbortController();
    const own = join(dir, 't');
    await mkdir(own);
    vi.stubEnv('TMPDIR', own);
    const started = join(dir, 'started');
    const watcher = watch(dir);
    const seen = once(watcher, 'change');
    const probe = probeAgent(shell(`touch ${started}; sleep 300`), 'local', dir, stopping.signal);
    await Promise.all([expect(probe).rejects.toThrow('enough'), seen.then(() => stopping.abort(new Error('enough')))]);
    watcher.close();
    vi.unstubAllEnvs();
    expect(await readdir(own)).toEqual([]);
  });

  it.each([
    [{ harness: 'nothing' }, 'unknown_harness'],
    [{ harness: 'pi', dialect: 'latin' }, 'schema_violation'],
    [{ harness: 'pi', settings: '{' }, 'malformed_json'],
    [{ harness: 'pi', settings: '{"no_such_setting":1}' }, 'schema_violation'],
    [{ harness: 'pi', customShell: 'true' }, 'unsupported'],
    [{ harness: 'shell' }, 'bad_request'],
  ])('refuses %j with %s', async (options, code) => {
    await expect(examineHarness(options, machine)).rejects.toMatchObject({ code });
  });
});

describe('findingsOf', () => {
  let good: Probe;
  let dir: string;
  beforeAll(async () => {
    dir = await mkdtemp(join(tmpdir(), 'floe-doctor-test-'));
    good = await probeAgent(shell(oneCall('hi')), 'local', dir, new AbortController().signal);
  });
  afterAll(() => rm(dir, { recursive: true, force: true }));

  const lastOf = (probe: Probe): Finding | undefined => findingsOf(probe, 'openai_chat').at(-1);

  it('reports a failed reply check when the harness repeated the request or disconnected', () => {
    const marked = (marks: object): Probe => ({
      ...good,
      completions: good.completions.map((completion) => ({ ...completion, ...marks })),
    });
    expect(lastOf(marked({ abandoned: true }))).toMatchObject({
      ok: false,
      part: 'reply',
      text: expect.stringMatching(/repeated the request/),
    });
    expect(lastOf(marked({ undelivered: true }))).toMatchObject({
      ok: false,
      part: 'reply',
      text: expect.stringMatching(/disconnected/),
    });
  });

  it('reports a failed token check when a token differs from the ledger, or none is trained', () => {
    const mismatch = {
      session_id: 's',
      trace_id: 't',
      completion_id: 'c',
      what: 'logprob',
      detail: '1 not 2',
    } as const;
    expect(lastOf({ ...good, ledger: { ...good.ledger, mismatches: [mismatch] } })).toMatchObject({
      ok: false,
      part: 'tokens',
      text: '1 differences from the engine, the first: logprob: 1 not 2',
    });
    expect(lastOf({ ...good, ledger: { ...good.ledger, trainable_tokens: 0 } })).toMatchObject({ ok: false });
  });

  it('reports a failed sandbox check when the agent was never started', () => {
    const error = { code: 'runtime_failed', message: 'no namespace', stage: 'init', details: {} };
    const probe: Probe = { ...good, result: { ...good.result, outcome: 'infra_error', agent: null, error } };
    expect(lastOf(probe)).toMatchObject({ part: 'sandbox', text: 'infra_error: runtime_failed: no namespace' });
  });
});

describe.each(['openai_chat', 'anthropic', 'openai_responses', 'gemini'] as const)(
  'doctor on pi over %s',
  (dialect) => {
    itIf(harnessMissing('pi', installed), 'passes every check with the real program', async () => {
      const { signal } = new AbortController();
      const machine = { harnessDir: harnessDir(), chooseBackend, signal };
      const findings = await examineHarness({ harness: 'pi', dialect }, machine);
      expect(parts(findings)).toEqual(GOOD);
    });
  },
);
