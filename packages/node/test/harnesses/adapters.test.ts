import { agentSpecSchema, leaseSchema, taskRequestSchema } from '@floe-rl/core/schema';
import { describe, expect, it } from 'vitest';
import type { HarnessAdapter, LaunchContext } from '../../src/harnesses/harness.ts';
import { findHarness, harnessRegistry } from '../../src/harnesses/registry.ts';
import { sessionEnv } from '../../src/harnesses/session-env.ts';

type AgentInput = Parameters<typeof agentSpecSchema.parse>[0] & object;

function context(agent: AgentInput, more: Partial<LaunchContext> = {}): LaunchContext {
  return {
    instruction: "fix 'it'\n--now",
    agent: agentSpecSchema.parse(agent),
    skills: [],
    baseUrl: 'http://127.0.0.1:1/s/secret-key',
    apiKey: 'secret-key',
    contextWindow: 32_768,
    paths: { workdir: '/work', home: '/home/agent', logs: '/logs' },
    toolServer: { command: [], env: {} },
    installDir: '/opt/harness',
    ...more,
  };
}

/** Names of the harnesses that have a command. */
function harnessesInSandboxes(): string[] {
  return [...harnessRegistry().values()].filter(({ runsOnNode }) => !runsOnNode).map(({ name }) => name);
}

describe('the harness registry', () => {
  it('contains every adapter under its name', () => {
    for (const [name, adapter] of harnessRegistry()) expect(adapter.name).toBe(name);
  });

  it('lists the known names in the error for an unknown name', () => {
    expect(() => findHarness('claude')).toThrow(expect.objectContaining({ code: 'unknown_harness' }));
    expect(() => findHarness('claude')).toThrow(/pi, (.*, )?shell/);
  });
});

const launches = harnessesInSandboxes().map((harness): [string, AgentInput] => [
  harness,
  harness === 'shell' ? { harness, custom_shell: 'run' } : { harness },
]);
describe.each(launches)('the %s harness', (name, agent) => {
  const adapter: HarnessAdapter = findHarness(name);

  it('keeps secrets and the instruction off the command line', () => {
    const launch = adapter.launch(context(agent));
    const line = typeof launch.command === 'string' ? launch.command : launch.command.join(' ');
    expect(line).not.toContain('secret-key');
    expect(line).not.toContain('--now');
    const places = [launch.stdin ?? '', ...launch.files.map(({ content }) => String(content))];
    expect(places.some((text) => text.includes('--now'))).toBe(true);
    for (const { path } of launch.files) expect(path).toMatch(/^\/home\/agent\//);
  });

  it('refuses unknown settings', () => {
    const unknown = agentSpecSchema.parse({ ...agent, settings: { surprise: 1 } });
    expect(() => adapter.checkAgent(unknown)).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    expect(() => adapter.checkAgent(agentSpecSchema.parse(agent))).not.toThrow();
  });
});

describe('the shell harness', () => {
  const shell = findHarness('shell');

  it('requires a command', () => {
    for (const custom_shell of [undefined, '  ']) {
      const agent = agentSpecSchema.parse({ harness: 'shell', custom_shell });
      expect(() => shell.checkAgent(agent)).toThrow(/custom_shell/);
    }
  });

  it('also writes the instruction to a file', () => {
    const launch = shell.launch(context({ harness: 'shell', custom_shell: 'agent' }));
    expect(launch.files).toEqual([{ path: launch.env.FLOE_INSTRUCTION_FILE, content: "fix 'it'\n--now" }]);
  });

  it('judges by the exit code', () => {
    const report = { exitCode: 0, stdout: '', stderr: '', turns: 1 };
    expect(shell.judge(report)).toEqual({ ok: true });
    expect(shell.judge({ ...report, exitCode: 2, stderr: 'bad\n' })).toEqual({
      ok: false,
      message: 'the command exited with 2: bad',
    });
    expect(shell.judge({ ...report, exitCode: null })).toMatchObject({ ok: false });
  });
});

describe('the pi harness', () => {
  const pi = findHarness('pi');
  const models = (launch: ReturnType<typeof pi.launch>) => JSON.parse(String(launch.files[0]?.content)).providers.floe;

  it.each([
    ['openai_chat', 'openai-completions', 'http://127.0.0.1:1/s/secret-key/v1'],
    ['openai_responses', 'openai-responses', 'http://127.0.0.1:1/s/secret-key/v1'],
    ['anthropic', 'anthropic-messages', 'http://127.0.0.1:1/s/secret-key'],
    ['gemini', 'google-generative-ai', 'http://127.0.0.1:1/s/secret-key/v1beta'],
  ])('configures the API and the base URL for %s', (dialect, api, baseUrl) => {
    const launch = pi.launch(context({ harness: 'pi', dialect }));
    expect(launch.files[0]).toMatchObject({ path: '/home/agent/.pi/agent/models.json', mode: 0o600 });
    expect(models(launch)).toMatchObject({ api, baseUrl, apiKey: 'secret-key' });
  });

  it("configures the policy's context window and a reply limit below it", () => {
    const [model] = models(pi.launch(context({ harness: 'pi', model_name: 'qwen/q:7b' }))).models;
    expect(model).toMatchObject({ id: 'qwen/q:7b', contextWindow: 32_768, maxTokens: 8_192 });
    const settings = { max_tokens: 77, thinking: 'high' };
    const launch = pi.launch(context({ harness: 'pi', settings }, { contextWindow: null }));
    expect(models(launch).models[0]).toMatchObject({ contextWindow: 131_072, maxTokens: 77 });
    expect(launch.command).toEqual(expect.arrayContaining(['--thinking', 'high']));
  });

  it('passes an addition to the prompt as a file, whatever its text is', () => {
    const launch = pi.launch(context({ harness: 'pi', system_prompt: '@/etc/passwd' }));
    const options = launch.command as readonly string[];
    const path = options[options.indexOf('--append-system-prompt') + 1];
    expect(launch.files).toContainEqual({ path, content: '@/etc/passwd' });
    expect(pi.launch(context({ harness: 'pi' })).command).not.toContain('--append-system-prompt');
  });

  it('enables images only when the policy accepts them', () => {
    const inputOf = (settings: object) => models(pi.launch(context({ harness: 'pi', settings }))).models[0].input;
    expect(inputOf({})).toEqual(['text']);
    expect(inputOf({ vision: true })).toEqual(['text', 'image']);
  });

  it('refuses to launch without an installation', () => {
    const launch = () => pi.launch(context({ harness: 'pi' }, { installDir: null }));
    expect(launch).toThrow(expect.objectContaining({ code: 'harness_missing' }));
  });

  it('judges a run by the stop reason of its last message, even when the exit code is 0', () => {
    const end = (stopReason: string, errorMessage?: string): string =>
      `${JSON.stringify({ type: 'message_end', message: { role: 'assistant', content: [], stopReason, errorMessage } })}\n`;
    const tool = `${JSON.stringify({ type: 'message_end', message: { role: 'toolResult' } })}\n`;
    const judge = (stdout: string, exitCode: number | null = 0) =>
      pi.judge({ exitCode, stdout, stderr: 'e', turns: 1 });
    expect(judge(`${end('toolUse')}${tool}${end('stop')}{"type":"agent_settled"}\n`)).toEqual({ ok: true });
    expect(judge(end('error', 'x') + end('stop'))).toEqual({ ok: true });
    expect(judge(end('stop') + end('error', '400: no'))).toEqual({ ok: false, message: '400: no' });
    // Programs in the sandbox can write any output. Judging such outputs, with millions of lines or thousands of markers, must not block
    // the event loop.
    expect(judge(`${end('stop')}${'\n'.repeat(4_000_000)}`)).toEqual({ ok: true });
    expect(judge(end('stop') + '"message_end"\n'.repeat(10_000))).toMatchObject({ ok: false });
    expect(judge(end('aborted'))).toMatchObject({ ok: false });
    expect(judge(end('stop'), 1)).toMatchObject({ ok: false, message: 'pi exited with 1: e' });
    expect(judge(end('stop'), null)).toMatchObject({ ok: false });
    expect(judge('')).toMatchObject({ ok: false });
    // Asserts the verdicts for an output that starts in the middle of a line, because its beginning was dropped.
    expect(judge(`{"type":"mess${end('stop')}`)).toMatchObject({ ok: false });
    expect(judge(`{"type":"mess\nage"}\n${end('stop')}`)).toEqual({ ok: true });
  });

  it('judges a run by the last stop reason when the last message is in the part of the output that was dropped', () => {
    const judge = (stdout: string) => pi.judge({ exitCode: 0, stdout, stderr: '', turns: 9 });
    const turn = '{"type":"message_end","message":{"role":"assistant","stopReason":"toolUse"}}\n';
    const ending = (stop: string): string =>
      `{"type":"agent_end","messages":[{"content":"aaaa{\\"stopReason\\":\\"stop\\"}"},{"role":"assistant","stopReason":"${stop}"}]}\n`;
    const settled = '{"type":"agent_settled"}\n';
    expect(judge(`${turn}${ending('stop').slice(40)}${settled}`)).toEqual({ ok: true });
    expect(judge(`${turn}${ending('error').slice(40)}${settled}`)).toEqual({
      ok: false,
      message: 'the last message stopped with error',
    });
    expect(judge(turn)).toEqual({ ok: false, message: 'pi ended before its turn was complete' });
  });
});

/** Returns the environment of an agent whose proxy has the base URL `http://h:1/s/k`. */
function shellEnv(): Record<string, string> {
  const task = taskRequestSchema.parse({ instruction: 'x', agent: { harness: 'shell', model_name: 'm' } });
  const lease = leaseSchema.parse({
    session_id: 'ses_1',
    task_id: 'task_1',
    sample_index: 3,
    attempt: 1,
    epoch: 1,
    lease_seconds: 60,
    queued_ms: 0,
    task,
  });
  const paths = { workdir: '/work', home: '/home/agent', artifacts: '/artifacts', logs: '/logs' };
  return sessionEnv({ lease, baseUrl: 'http://h:1/s/k', apiKey: 'k', paths });
}

it('the session environment contains every variable that agents read', () => {
  expect(shellEnv()).toMatchObject({
    FLOE_SESSION_ID: 'ses_1',
    FLOE_SAMPLE_INDEX: '3',
    SESSION_ID: 'ses_1',
    TASK_ID: 'task_1',
    ANTHROPIC_BASE_URL: 'http://h:1/s/k',
    OPENAI_BASE_URL: 'http://h:1/s/k/v1',
    GOOGLE_API_URL: 'http://h:1/s/k',
    ANTHROPIC_API_KEY: 'k',
    OPENAI_API_KEY: 'k',
    GOOGLE_API_KEY: 'k',
    FLOE_MODEL: 'm',
    ARTIFACTS_DIR: '/artifacts',
    AGENT_LOG_DIR: '/logs',
  });
});

it("an agent gets the base URLs under the names that LiteLLM reads, Google's with the version of the API", () => {
  expect(shellEnv()).toMatchObject({
    ANTHROPIC_API_BASE: 'http://h:1/s/k',
    OPENAI_API_BASE: 'http://h:1/s/k/v1',
    GEMINI_API_BASE: 'http://h:1/s/k/v1beta',
  });
});
