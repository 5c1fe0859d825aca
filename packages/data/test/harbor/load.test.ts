import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { loadHarborTask, taskFolders } from '../../src/harbor/load.ts';
import { folderWith, HARBOR_FILES, TERMINAL_BENCH_FILES } from './task-folder.ts';

const withToml = (toml: string, files: Record<string, string | null> = {}): string =>
  folderWith({ ...HARBOR_FILES, 'task.toml': toml, ...files });

const FULL = `schema_version = "1.4"
artifacts = ["out.txt", { source = "/app/report", destination = "report" }]

[task]
name = "floe/full"
keywords = ["small"]

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 30
user = "root"

[verifier]
timeout_sec = 20.5
env = { MODE = "strict" }
user = 1000
environment_mode = "separate"

[[verifier.collect]]
command = "pg_dump > dump.sql"

[environment]
network_mode = "no-network"
build_timeout_sec = 60
docker_image = "floe/base:1"
cpus = 2
memory_mb = 512
storage_mb = 256
workdir = "/srv"
env = { HOST = "\${HOST_NAME}" }
skills_dir = "/opt/skills"

[[environment.mcp_servers]]
name = "search"
transport = "streamable-http"
url = "http://127.0.0.1:1/mcp"

[environment.healthcheck]
command = "test -e ready"
retries = 2

[solution]
env = { FAST = "1" }
`;

describe('a Harbor task folder', () => {
  it('is read with the defaults of its format', async () => {
    const dir = folderWith(HARBOR_FILES);
    expect(await loadHarborTask(dir)).toMatchObject({
      name: 'floe/greeting',
      dir,
      instruction: 'Write hello to greeting.txt.\n',
      image: { kind: 'build', context: join(dir, 'environment'), dockerfile: 'Dockerfile' },
      buildSeconds: 600,
      workdir: null,
      network: 'unstated',
      limits: { cpus: null, memoryMb: null, storageMb: null },
      agentSeconds: null,
      verifier: { tests: [join(dir, 'tests')], script: 'test.sh', grading: 'reward_file', seconds: 600, carried: null },
      solution: { dir: join(dir, 'solution'), text: null, env: {} },
    });
  });

  it('is read with every setting of its configuration', async () => {
    const dir = withToml(FULL, { 'environment/skills/a/SKILL.md': 'a' });
    expect(await loadHarborTask(dir)).toMatchObject({
      image: { kind: 'reference', reference: 'floe/base:1' },
      buildSeconds: 60,
      workdir: '/srv',
      env: { HOST: `\${HOST_NAME}` },
      network: 'no-network',
      limits: { cpus: 2, memoryMb: 512, storageMb: 256 },
      healthchecks: [{ command: 'test -e ready', interval_sec: 5, retries: 2 }],
      mcpServers: [{ name: 'search', transport: 'http', url: 'http://127.0.0.1:1/mcp' }],
      skillsDir: join(dir, 'environment/skills'),
      agentSeconds: 30,
      artifacts: ['out.txt', '/app/report'],
      verifier: {
        seconds: 20.5,
        env: { MODE: 'strict' },
        user: 1000,
        carried: ['/logs/artifacts', 'out.txt', '/app/report'],
        collect: [{ command: 'pg_dump > dump.sql', seconds: 60 }],
      },
      solution: { env: { FAST: '1' } },
      metadata: { difficulty: 'easy', harbor_task: 'floe/full', keywords: ['small'] },
    });
  });

  it('is read with the names of settings in older versions', async () => {
    const toml = 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n';
    const task = await loadHarborTask(withToml(toml));
    expect(task).toMatchObject({ limits: { memoryMb: 2048, storageMb: 512 }, network: 'no-network' });
    expect(task.name).toMatch(/^floe-harbor-/);
  });

  it('has the hosts of its allow list', async () => {
    const toml = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["pypi.org", "*.example.org:8443"]\n';
    const hosts = ['pypi.org', '*.example.org:8443'];
    expect(await loadHarborTask(withToml(toml))).toMatchObject({ network: 'allowlist', allowedHosts: hosts });
  });

  it("is read with the settings of the verifier's own environment, whose image its Dockerfile or a reference names", async () => {
    const separate = '[verifier]\nenvironment_mode = "separate"\n';
    const readFrom = async (toml: string, files: Record<string, string> = {}) => {
      const dir = withToml(`${separate}${toml}`, files);
      return { dir, environment: (await loadHarborTask(dir)).verifier.environment };
    };
    expect((await readFrom('')).environment).toBeNull();
    const dockerfile = { 'tests/Dockerfile': 'FROM base\n' };
    const built = await readFrom('', dockerfile);
    expect(built.environment).toEqual({
      image: { kind: 'build', context: join(built.dir, 'tests'), dockerfile: 'Dockerfile' },
      buildSeconds: 600,
      workdir: null,
      env: {},
      limits: { cpus: null, memoryMb: null, storageMb: null },
      healthchecks: [],
    });
    const settings =
      'memory_mb = 99\nworkdir = "/grade"\nenv = { A = "1" }\nbuild_timeout_sec = 7\n[verifier.environment.healthcheck]\ncommand = "ok"';
    const stated = await readFrom(`[verifier.environment]\ndocker_image = "floe/v:1"\n${settings}`, dockerfile);
    expect(stated.environment).toMatchObject({
      image: { kind: 'reference', reference: 'floe/v:1' },
      ...{ buildSeconds: 7, workdir: '/grade', env: { A: '1' } },
      limits: { memoryMb: 99 },
      healthchecks: [{ command: 'ok' }],
    });
    expect((await readFrom('[verifier.environment]\ncpus = 1\n')).environment).toMatchObject({
      image: null,
      limits: { cpus: 1 },
    });
  });

  it('is read with several steps, each with its own files and limits', async () => {
    const toml = [
      'multi_step_reward_strategy = "final"\nartifacts = ["/out"]\n[environment.healthcheck]\ncommand = "env-ok"',
      '[agent]\ntimeout_sec = 9\n[verifier]\nuser = "root"',
      '[[steps]]\nname = "one"\nmin_reward = 0.5\nartifacts = ["/one"]\n[steps.agent]\ntimeout_sec = 7',
      '[[steps]]\nname = "two"\n[steps.healthcheck]\ncommand = "two-ok"\n[steps.verifier]\ntimeout_sec = 3',
    ];
    const dir = withToml(toml.join('\n'), {
      'instruction.md': null,
      'solution/solve.sh': 'shared',
      'steps/one/instruction.md': 'first',
      'steps/one/solution/solve.sh': 'true',
      'steps/two/instruction.md': 'second',
      'steps/two/tests/test.sh': 'true',
      'steps/two/workdir/data': '',
    });
    const task = await loadHarborTask(dir);
    expect(task).toMatchObject({ stepReward: 'final', artifacts: ['/out', '/one'] });
    expect(task.steps).toMatchObject([
      {
        ...{ name: 'one', instruction: 'first', minReward: 0.5, agentSeconds: 7, workdirFiles: null },
        healthchecks: [{ command: 'env-ok' }],
        verifier: { tests: [join(dir, 'tests')], user: 'root' },
        solution: { dir: join(dir, 'steps/one/solution') },
      },
      {
        ...{ name: 'two', instruction: 'second', minReward: null, agentSeconds: 9 },
        workdirFiles: { dir: join(dir, 'steps/two/workdir'), hasSetup: false },
        healthchecks: [{ command: 'two-ok' }],
        verifier: { tests: [join(dir, 'tests'), join(dir, 'steps/two/tests')], seconds: 3 },
        solution: { dir: join(dir, 'solution') },
      },
    ]);
  });

  it('is read with its only step, whose tests are copied over those of the task', async () => {
    const toml = '[verifier]\nuser = "root"\n[[steps]]\nname = "first"\n[steps.agent]\ntimeout_sec = 7\n';
    const dir = withToml(toml, {
      'instruction.md': null,
      'steps/first/instruction.md': 'step',
      'steps/first/tests/test.sh': 'true',
      'steps/first/workdir/setup.sh': 'true',
    });
    expect(await loadHarborTask(dir)).toMatchObject({
      instruction: 'step',
      agentSeconds: 7,
      workdirFiles: { dir: join(dir, 'steps/first/workdir'), hasSetup: true },
      verifier: { tests: [join(dir, 'tests'), join(dir, 'steps/first/tests')], user: 'root' },
    });
  });

  it.each([
    ['[environment]\ncpu = 1\n', 'task.toml:2: environment.cpu: is not a key of this format'],
    [
      '[environment]\n\ncpus = "two"\n',
      'task.toml:3: environment.cpus: Invalid input: expected number, received string',
    ],
    ['schema_version = "2.0"\n', 'task.toml:1: schema_version: must be 1.0 to 1.4'],
    ['[agent]\ntimeout_sec = -1\n', 'task.toml:2: agent.timeout_sec: Too small: expected number to be >0'],
    [
      '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n[steps.verifier]\ntime = 1\n',
      'task.toml:6: steps.1.verifier.time: is not a key of this format',
    ],
    [
      '[[environment.mcp_servers]]\nname = "x"\n',
      'task.toml:1: environment.mcp_servers.0.url: is required for this transport',
    ],
    ['[environment\n', 'task.toml:1: '],
  ])('is refused with the file, line and key of an invalid setting: %j', async (toml, message) => {
    const dir = withToml(toml);
    await expect(loadHarborTask(dir)).rejects.toMatchObject({
      code: 'schema_violation',
      message: expect.stringContaining(join(dir, message)),
    });
  });

  it.each([
    ['[environment]\nos = "windows"\n', 'environment.os: is windows'],
    ['[environment]\ngpus = 1\n', 'environment.gpus: '],
    [
      '[agent]\nuser = "dev"\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n[steps.agent]\nuser = "root"\n',
      'steps.1.agent.user: is another one than of the first step',
    ],
    ['[verifier.environment]\ncpus = 1\n', 'verifier.environment: has an effect only with'],
    [
      '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\ngpus = 1\n',
      'verifier.environment.gpus: sandboxes have no GPU',
    ],
    [
      '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\nskills_dir = "/s"\n',
      'verifier.environment.skills_dir: ',
    ],
    [
      '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\nallow_internet = false\n',
      "verifier.network_mode: the agent's is unstated and the verifier's is no-network",
    ],
    ['[environment]\nnetwork_mode = "allowlist"\n', 'allowed_hosts: must name a host'],
    ['[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a b"]\n', 'allowed_hosts: a b is no host'],
    [
      '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["b.org"]\n',
      'verifier.network_mode: the agent and the verifier have different hosts',
    ],
    [
      '[verifier]\nnetwork_mode = "public"\n',
      "verifier.network_mode: the agent's is unstated and the verifier's is public",
    ],
    ['artifacts = [{ source = "/x", service = "db" }]\n', 'artifacts.0.service: '],
    ['artifacts = [{ source = "/x", exclude = ["*.o"] }]\n', 'artifacts.0.exclude: '],
    ['[environment]\nskills_dir = "/opt/skills"\n', 'environment.skills_dir: '],
  ])('is refused with the key of what floe cannot run: %j', async (toml, message) => {
    const dir = withToml(toml);
    await expect(loadHarborTask(dir)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining(`${join(dir, 'task.toml')}: ${message}`),
    });
  });

  it.each(['instruction.md', 'environment/Dockerfile', 'tests/test.sh'])('is refused without %s', async (path) => {
    const dir = folderWith({ ...HARBOR_FILES, [path]: null });
    await expect(loadHarborTask(dir)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringContaining(`${join(dir, path)} does not exist`),
    });
  });

  it('is refused with the file of several containers', async () => {
    const dir = folderWith({ ...HARBOR_FILES, 'environment/docker-compose.yaml': 'services: {}\n' });
    await expect(loadHarborTask(dir)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('environment/docker-compose.yaml: services: '),
    });
  });
});

describe('a Terminal-Bench task folder', () => {
  it('is read with a Dockerfile', async () => {
    const dir = folderWith(TERMINAL_BENCH_FILES);
    expect(await loadHarborTask(dir)).toMatchObject({
      instruction: 'Write hello.',
      image: { kind: 'build', context: dir, dockerfile: 'Dockerfile' },
      agentSeconds: 90,
      verifier: {
        tests: [join(dir, 'tests'), join(dir, 'run-tests.sh')],
        script: 'run-tests.sh',
        grading: 'pytest_summary',
        seconds: 60,
        env: { TEST_DIR: '/tests' },
      },
      solution: { text: 'echo hello\n' },
      metadata: { difficulty: 'easy' },
    });
  });

  it('is read with a composition of one container', async () => {
    const compose = `services:
  client:
    build: { context: image }
    container_name: \${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: [sh, -c, sleep infinity]
    working_dir: /srv
    environment: ["TEST_DIR=\${T_BENCH_TEST_DIR}", MODE=a=b]
    volumes: ["\${T_BENCH_TASK_LOGS_PATH}:\${T_BENCH_CONTAINER_LOGS_PATH}"]
`;
    const dir = folderWith({
      ...TERMINAL_BENCH_FILES,
      'docker-compose.yaml': compose,
      'image/Dockerfile': 'FROM base\n',
    });
    expect(await loadHarborTask(dir)).toMatchObject({
      image: { context: join(dir, 'image') },
      env: { MODE: 'a=b' },
      workdir: '/srv',
    });
  });

  it('is read with a solution that is a list of commands', async () => {
    const solution = '- command: cd /app\n- command: make\n  block: true\n';
    const dir = folderWith({ ...TERMINAL_BENCH_FILES, 'solution.sh': null, 'solution.yaml': solution });
    expect((await loadHarborTask(dir)).solution).toMatchObject({ text: 'cd /app\nmake\n' });
  });

  it.each<[string, Record<string, string | null>]>([
    ['task.yaml: parser_name: is swebench', { 'task.yaml': 'instruction: x\nparser_name: swebench\n' }],
    ['task.yaml: run_tests_in_same_shell: ', { 'task.yaml': 'instruction: x\nrun_tests_in_same_shell: true\n' }],
    ['docker-compose.yaml: services: has client, db', { 'docker-compose.yaml': 'services:\n  client: {}\n  db: {}\n' }],
    [
      'docker-compose.yaml: services.client.privileged: ',
      { 'docker-compose.yaml': 'services:\n  client:\n    privileged: true\n' },
    ],
    [
      'docker-compose.yaml: services.client.volumes: has /:/host',
      { 'docker-compose.yaml': 'services:\n  client:\n    volumes: ["/:/host"]\n' },
    ],
    [
      'solution.yaml: 0.append_enter: ',
      { 'solution.sh': null, 'solution.yaml': '- command: y\n  append_enter: false\n' },
    ],
  ])('is refused with the key of what floe cannot run: %s', async (message, files) => {
    const dir = folderWith({ ...TERMINAL_BENCH_FILES, ...files });
    await expect(loadHarborTask(dir)).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining(join(dir, message)),
    });
  });

  it.each<[string, Record<string, string | null>]>([
    ['task.yaml:2: speed: is not a key of this format', { 'task.yaml': 'instruction: x\nspeed: 1\n' }],
    ['task.yaml: ', { 'task.yaml': 'instruction: [' }],
  ])('is refused with the line of an invalid setting: %s', async (message, files) => {
    const dir = folderWith({ ...TERMINAL_BENCH_FILES, ...files });
    await expect(loadHarborTask(dir)).rejects.toMatchObject({
      code: 'schema_violation',
      message: expect.stringContaining(join(dir, message)),
    });
  });

  it('is refused without run-tests.sh', async () => {
    const dir = folderWith({ ...TERMINAL_BENCH_FILES, 'run-tests.sh': null });
    await expect(loadHarborTask(dir)).rejects.toMatchObject({ code: 'setup_failed' });
  });
});

describe('the task folders of a path', () => {
  it('are the path itself or the folders in it', async () => {
    const one = folderWith(HARBOR_FILES);
    const many = folderWith({ 'b/task.toml': '', 'a/task.yaml': '', 'c/readme.md': '' });
    expect(await taskFolders(one)).toEqual([one]);
    expect(await taskFolders(many)).toEqual([join(many, 'a'), join(many, 'b')]);
  });

  it('are refused when there are none', async () => {
    await expect(taskFolders(folderWith({ 'readme.md': '' }))).rejects.toMatchObject({ code: 'setup_failed' });
    await expect(loadHarborTask(folderWith({}))).rejects.toMatchObject({ code: 'setup_failed' });
  });
});
