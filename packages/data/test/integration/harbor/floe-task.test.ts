import { execFileSync, spawnSync } from 'node:child_process';
import { describe, expect, it } from 'vitest';
import { type FloeTaskOptions, floeTask } from '../../../src/harbor/floe-task.ts';
import { loadHarborTask } from '../../../src/harbor/load.ts';
import { folderWith, HARBOR_FILES } from '../../harbor/task-folder.ts';

const OPTIONS: FloeTaskOptions = {
  agent: { harness: 'pi' },
  backend: 'docker',
  image: { reference: 'floe-harbor-greeting:1', workdir: '/srv' },
  verifierImage: null,
  hostVariables: {},
  allowNetwork: false,
  ignoreUsers: false,
  withTools: true,
};

async function converted(toml: string, options: Partial<FloeTaskOptions> = {}, files: Record<string, string> = {}) {
  const dir = folderWith({ ...HARBOR_FILES, 'task.toml': toml, ...files });
  return { dir, task: floeTask(await loadHarborTask(dir), { ...OPTIONS, ...options }) };
}

describe('the floe task of a Harbor task', () => {
  it('refuses a user whom the sandboxes of the runtime lack, unless users are ignored', async () => {
    const toml = '[verifier]\nuser = "dev"\n';
    await expect(converted(toml, { backend: 'apptainer' })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringMatching(
        /task\.toml: verifier\.user: is dev, and a sandbox of apptainer has only the user root; --ignore-users/,
      ),
    });
    const { task } = await converted(toml, { backend: 'apptainer', ignoreUsers: true });
    expect(task.evaluator?.config.user).toBeNull();
    const root = await converted('[verifier]\nuser = "root"\n', { backend: 'bubblewrap' });
    expect(root.task.evaluator?.config.user).toBeNull();
  });

  it('runs the agent as the user of the task, and clears the files of an earlier step as root', async () => {
    expect((await converted('[agent]\nuser = "dev"\n')).task.runtime?.user).toBe('dev');
    expect((await converted('[agent]\nuser = 1000\n')).task.runtime?.user).toBe(1000);
    expect((await converted('')).task.runtime?.user).toBeNull();
    await expect(converted('[agent]\nuser = "dev"\n', { backend: 'bubblewrap' })).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('agent.user: is dev, and a sandbox of bubblewrap has only the user agent'),
    });
    const toml = '[agent]\nuser = "dev"\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n';
    const steps = { 'steps/a/instruction.md': 'one', 'steps/b/instruction.md': 'two' };
    const { task } = await converted(toml, {}, steps);
    expect(task.runtime?.user).toBe('dev');
    expect(task.steps[1]?.prepare[0]).toMatchObject({ command: 'rm -rf /tests /logs/verifier', user: 'root' });
  });

  it('has its instruction, image, limits and verifier', async () => {
    const toml =
      '[agent]\ntimeout_sec = 30\n[verifier]\ntimeout_sec = 20\nuser = "dev"\n[environment]\ncpus = 2\nmemory_mb = 512\n';
    const { dir, task } = await converted(toml);
    expect(task).toMatchObject({
      instruction: HARBOR_FILES['instruction.md'],
      timeout_seconds: 630,
      budgets: { init: 600, agent: 30, eval: 140 },
      runtime: {
        backend: 'docker',
        image: 'floe-harbor-greeting:1',
        workdir: '/srv',
        cpus: 2,
        memory_mb: 512,
        network: 'none',
      },
      evaluator: {
        strategy: 'harbor',
        refresh_runtime: false,
        config: { tests: [`${dir}/tests`], script: 'test.sh', timeout: 20, user: 'dev', artifacts: [] },
      },
      metadata: { harbor: { dir } },
    });
  });

  it('has a fresh runtime and the artifacts that cross when the verifier is separate', async () => {
    const { task } = await converted('artifacts = ["/app/out"]\n[verifier]\nenvironment_mode = "separate"\n');
    expect(task.evaluator).toMatchObject({
      refresh_runtime: true,
      config: { artifacts: ['/logs/artifacts', '/app/out'] },
    });
    expect(task.artifacts.paths).toEqual(['/app/out']);
  });

  it("has settings of the verifier's own environment for the fresh runtime", async () => {
    const separate = '[verifier]\nenvironment_mode = "separate"\n';
    expect((await converted(separate)).task.runtime).toMatchObject({ eval_prepare: null, eval_overrides: {} });
    const toml = `${separate}[environment]\nworkdir = "/repo"\n[verifier.environment]\nmemory_mb = 99\nenv = { A = "\${A:-b}" }
[verifier.environment.healthcheck]\ncommand = "true"\n`;
    const { task } = await converted(toml);
    expect(task.runtime).toMatchObject({
      eval_overrides: { workdir: '/repo', memory_mb: 99, env: { A: 'b' } },
      eval_prepare: [{ command: 'mkdir -p /logs/agent /logs/artifacts' }, { env: { CHECK: 'true' } }],
    });
    expect(task.runtime?.eval_overrides).not.toHaveProperty('image');
    const own = await converted(toml, { verifierImage: { reference: 'graders:1', workdir: '/grade' } });
    expect(own.task.runtime?.eval_overrides).toMatchObject({ image: 'graders:1', workdir: '/grade' });
  });

  it.each([
    [null, '/app'],
    ['/', '/app'],
    ['/srv/x', '/srv/x'],
  ])('has the workdir of an image that names %s: %s', async (workdir, expected) => {
    const { task } = await converted('', { image: { reference: 'x', workdir } });
    expect(task.runtime?.workdir).toBe(expected);
  });

  it('has the MCP servers and skills of the task', async () => {
    const toml = `[environment]
skills_dir = "/skills"
[[environment.mcp_servers]]
name = "a"
transport = "stdio"
command = "serve"
args = ["-v"]
[[environment.mcp_servers]]
name = "b"
transport = "http"
url = "http://127.0.0.1:1"
headers = { Authorization = "Bearer \${TOKEN}" }
`;
    const files = { 'environment/skills/x/SKILL.md': 'x' };
    const { dir, task } = await converted(toml, { hostVariables: { TOKEN: 't' } }, files);
    expect(task.agent.mcp_servers).toEqual([
      { name: 'a', transport: 'stdio', command: 'serve', args: ['-v'], env: {} },
      { name: 'b', transport: 'http', url: 'http://127.0.0.1:1', headers: { Authorization: 'Bearer t' } },
    ]);
    expect(task.agent.skills_path).toBe(`${dir}/environment/skills`);
  });

  it('has the variables of the host that were passed, and the defaults of others', async () => {
    const toml = `[environment]\nenv = { A = "\${A}", B = "x-\${B:-b}" }\n`;
    const { task } = await converted(toml, { hostVariables: { A: 'a' } });
    expect(task.runtime?.env).toEqual({ A: 'a', B: 'x-b' });
  });

  it('is refused when it reads a variable of the host that was not passed', async () => {
    await expect(converted(`[verifier]\nenv = { KEY = "\${HOME}" }\n`)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('verifier.env.KEY: needs the variable HOME; pass it with --pass-env HOME'),
    });
  });

  it('has the allow list of hosts of the task, where tasks may use the network', async () => {
    const toml = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\n';
    await expect(converted(toml)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('environment.network_mode: is allowlist, which needs --allow-network'),
    });
    const { task } = await converted(toml, { allowNetwork: true });
    expect(task.runtime).toMatchObject({ network: 'allowlist', allowed_hosts: ['pypi.org'] });
  });

  it('has the steps of the task, each with its verifier, and removes the tests of earlier steps', async () => {
    const toml = '[[steps]]\nname = "one"\nmin_reward = 1\n[[steps]]\nname = "two"\n[steps.agent]\ntimeout_sec = 5\n';
    const files = { 'steps/one/instruction.md': 'first', 'steps/two/instruction.md': 'second' };
    const { dir, task } = await converted(toml, {}, files);
    expect(task.evaluator).toMatchObject({ strategy: 'steps', config: { reward: 'mean' } });
    expect(task.steps).toMatchObject([
      { name: 'one', instruction: 'first', min_reward: 1, prepare: [], agent_seconds: 3600, eval_seconds: 720 },
      { name: 'two', instruction: 'second', prepare: [{ command: 'rm -rf /tests /logs/verifier' }], agent_seconds: 5 },
    ]);
    expect(task.steps[1]?.evaluator).toMatchObject({ strategy: 'harbor', config: { tests: [`${dir}/tests`] } });
    expect(task.budgets.agent).toBe(3600);
  });

  it('is refused when it asks for the network and may not use it', async () => {
    const toml = '[environment]\nnetwork_mode = "public"\n';
    await expect(converted(toml)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('--allow-network'),
    });
    expect((await converted(toml, { allowNetwork: true })).task.runtime?.network).toBe('host');
    expect((await converted('', { allowNetwork: true })).task.runtime?.network).toBe('host');
    const closed = '[environment]\nallow_internet = false\n';
    expect((await converted(closed, { allowNetwork: true })).task.runtime?.network).toBe('none');
  });
});

describe('the healthcheck of a floe task', () => {
  /** Runs the last prepare action of a task with this healthcheck. */
  async function run(command: string, settings = ''): Promise<number | null> {
    const toml = `[environment.healthcheck]\ncommand = '${command}'\ninterval_sec = 0\nstart_interval_sec = 0\n${settings}`;
    const { dir, task } = await converted(toml);
    const action = task.runtime?.prepare.at(-1);
    if (action?.type !== 'exec') throw new Error('the task has no healthcheck');
    return spawnSync('/bin/sh', ['-c', action.command], { cwd: dir, env: { PATH: process.env.PATH, ...action.env } })
      .status;
  }

  it('succeeds when the command succeeds after failures', async () => {
    expect(await run('echo x >> tries; test $(wc -l < tries) -ge 3')).toBe(0);
  });

  it('fails after the stated number of failures', async () => {
    expect(await run('false', 'retries = 2\n')).toBe(1);
  });

  it('does not count failures in the start period', async () => {
    expect(await run('echo x >> tries; test $(wc -l < tries) -ge 9', 'retries = 1\nstart_period_sec = 60\n')).toBe(0);
  });

  it('is a program that a POSIX shell accepts', async () => {
    const { task } = await converted('[environment.healthcheck]\ncommand = "true"\n');
    const action = task.runtime?.prepare.at(-1);
    expect(() => execFileSync('/bin/sh', ['-n', '-c', action?.type === 'exec' ? action.command : ''])).not.toThrow();
  });
});
