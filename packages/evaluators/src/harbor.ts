import { readFile, stat } from 'node:fs/promises';
import { basename, posix } from 'node:path';
import { asFloeError, type Clock, FloeError } from '@floe-rl/core';
import { ONLY_USERS } from '@floe-rl/core/schema';
import type { ExecResult, Runtime, SandboxFile } from '@floe-rl/sandbox';
import { carryPaths } from './carried-paths.ts';
import { isRuntimeFailure, requireWorking, type Timed, tailOf, withinTime } from './commands.ts';
import type { Evaluation, EvaluationContext, Evaluator } from './evaluator.ts';
import { carriesArtifacts, type HarborEvaluatorConfig, parseHarborConfig } from './harbor-config.ts';
import {
  type HarborReward,
  parsePolarReward,
  parsePytestSummary,
  parseRewardJson,
  parseRewardText,
} from './harbor-reward.ts';
import { MAX_REWARD_FILE_BYTES } from './reward-file.ts';
import type { ScriptFailure } from './script-config.ts';

/** Time limit in seconds of each command that copies the agent's files or empties a directory. */
const COMMAND_SECONDS = 120;

/**
 * Shell script that makes the directories of the verifier. Arguments: the directory of the tests, the directory of the rewards, and the
 * directories to empty.
 */
const PREPARE_SCRIPT = `tests=$1; verifier=$2; shift 2
rm -rf -- "$@" && mkdir -p -- "$tests" "$verifier" && chmod 777 "$verifier"`;

/**
 * Shell script that runs a script or a command with bash as a user of the image, with the home directory of this user. The arguments are the
 * directory of the tests, the user, the script, and a command to run in place of the script. The user is a name or a number, or an empty
 * string for the user of the sandbox.
 */
const RUN_SCRIPT = `tests=$1; user=$2; flag=; target=$3; wanted=\${user:-$(id -u)}
[ -z "$4" ] || { flag=-c; target=$4; chmod -R a+x "$tests"; }
while IFS=: read -r name _ id _ _ home _; do
  if [ "$name" = "$wanted" ] || [ "$id" = "$wanted" ]; then break; fi
  name=
done </etc/passwd
[ ! -d "\${name:+$home}" ] || export HOME="$home"
[ -n "$user" ] && [ "$id" != "$(id -u)" ] || exec bash $flag "$target"
[ -n "$name" ] || { echo "the image has no user $user" >&2; exit 125; }
chmod -R a+rX "$tests"
exec su -m -s /bin/sh "$name" -c "exec bash $flag \\"\\$0\\"" "$target"`;

/** Returns the real path of a file or folder on the node's host that a task names. Rejects for a path that tasks may not read. */
export type HostSource = (path: string) => Promise<string>;

type Run = {
  readonly context: EvaluationContext;
  readonly config: HarborEvaluatorConfig;
  readonly hostSource: HostSource;
  readonly clock: Clock;
  readonly signal: AbortSignal;
};

/**
 * Creates the evaluator `harbor`, which runs the verifier of a Harbor task: a script that writes its rewards to `/logs/verifier`. The tests
 * are copied into the sandbox after all processes of the agent have ended.
 *
 * As in Harbor, the script runs in the agent's runtime. The agent can cause every failure there, so a failure gives the reward 0. A task that
 * declares files to copy gets a fresh runtime instead. A failure of the script there is `evaluator_failed`, unless the task declares that the
 * agent can cause it.
 */
export function harborEvaluator(clock: Clock, hostSource: HostSource): Evaluator {
  return {
    name: 'harbor',
    freshRuntimeByDefault: false,
    wantsFreshRuntime: carriesArtifacts,
    checkConfig(config, spec) {
      parseHarborConfig(config, spec?.refresh_runtime ?? carriesArtifacts(config));
    },
    async evaluate(context, signal) {
      const { spec, runtime, freshRuntime } = context;
      const config = parseHarborConfig(spec.config, freshRuntime !== null);
      if (runtime.isolation === 'none') {
        throw new FloeError('evaluator_failed', 'harbor: needs an isolated runtime, because it uses /tests and /logs');
      }
      refuseUser(config.user, runtime);
      // As in Harbor, tests and rewards belong to root. Root also runs the script unless the task names another user.
      const asRoot = { ...context, runtime: runtime.asRoot(), freshRuntime: freshRuntime?.asRoot() ?? null };
      const run = { context: asRoot, config, hostSource, clock, signal };
      return asRoot.freshRuntime === null ? gradeInPlace(run) : gradeFresh(run, asRoot.freshRuntime);
    },
  };
}

/** Throws `evaluator_failed` for a user that cannot exist in the runtime, because the agent is not the cause. */
function refuseUser(user: HarborEvaluatorConfig['user'], { backend }: Runtime): void {
  const only = ONLY_USERS[backend];
  if (only !== 'root' || user === null || user === 0 || user === only) return;
  const message = `harbor: config.user: is ${user}, and a sandbox of ${backend} has only the user ${only}`;
  throw new FloeError('evaluator_failed', message, { user });
}

async function gradeInPlace(run: Run): Promise<Evaluation> {
  try {
    return await grade(run, run.context.runtime, {});
  } catch (thrown) {
    if (!isRuntimeFailure(thrown)) throw thrown;
    return { reward: 0, details: { failure: 'runtime_broken', error: thrown.message } };
  }
}

async function gradeFresh(run: Run, fresh: Runtime): Promise<Evaluation> {
  const { context, config, clock, signal } = run;
  const { runtime: agent } = context;
  for (const { command, timeout } of config.collect) {
    const ran = await withinTime(clock, timeout * 1000, signal, (limited) => agent.exec({ command }, limited));
    if (ran.timedOut) return { reward: 0, details: { failure: 'collect_timeout', command } };
  }
  const paths = config.artifacts.map((path) => posix.resolve(agent.paths.workdir, path).slice(1));
  const carried = await carryPaths(agent, fresh, { paths, dir: '/', limitSeconds: COMMAND_SECONDS, clock, signal });
  if (!carried.applied) return { reward: 0, details: { failure: carried.problem, ...carried.details } };
  const { files, bytes, missing } = carried;
  return grade(run, fresh, { carried_files: files, carried_bytes: bytes, missing_paths: missing });
}

async function grade(run: Run, runtime: Runtime, facts: Record<string, unknown>): Promise<Evaluation> {
  const { context, config, clock, signal } = run;
  const isShared = context.freshRuntime === null;
  const { tests_target: tests, verifier_dir: verifier } = config;
  const empty = isShared ? [verifier, tests] : [verifier];
  const prepared = await withinTime(clock, COMMAND_SECONDS * 1000, signal, (limited) =>
    runtime.exec(
      { command: ['/bin/sh', '-c', PREPARE_SCRIPT, 'harbor', tests, verifier, ...empty], cwd: '/' },
      limited,
    ),
  );
  if (prepared.timedOut || prepared.value.exitCode !== 0) return blocked(run, facts, endOf(prepared));
  const problem = await uploadTests(run, runtime);
  if (problem !== null) return blocked(run, facts, { error: problem });
  const ofScript = [tests, String(config.user ?? ''), `${tests}/${config.script}`, config.test_command ?? ''];
  const command = ['/bin/sh', '-c', RUN_SCRIPT, 'harbor', ...ofScript];
  const ran = await withinTime(clock, config.timeout * 1000, signal, (limited) =>
    runtime.exec({ command, env: context.spec.env }, limited),
  ).catch((thrown: unknown) => {
    if (!FloeError.is(thrown) || thrown.code !== 'workdir_missing') throw thrown;
    return null;
  });
  if (ran === null) return blocked(run, facts, { error: 'the workdir does not exist' });
  if (ran.timedOut) return failed(run, 'timeout', { ...facts, timeout: config.timeout });
  const details = { ...facts, ...tailOf(ran.value) };
  const reward =
    config.grading === 'pytest_summary' ? parsePytestSummary(ran.value.stdout) : await readReward(run, runtime);
  const { exitCode } = ran.value;
  // The file of a script that failed may be incomplete, so Polar does not accept it.
  if (config.grading === 'polar' && exitCode !== 0) return { reward: 0, details: { failure: 'exit_code', ...details } };
  if (reward === null) return failed(run, 'no_reward', details);
  if (typeof reward === 'string') return failed(run, 'invalid_reward', { ...details, error: reward });
  return { ...reward, details };
}

/** Copies the tests into the runtime. When the runtime refuses them although it still runs commands, resolves with the reason. */
async function uploadTests({ config, hostSource, signal }: Run, runtime: Runtime): Promise<string | null> {
  const sources = await Promise.all(config.tests.map(async (path) => testSource(await hostSource(path), config)));
  try {
    for (const { dir, file } of sources) {
      if (file === null) await runtime.uploadDir(dir, config.tests_target, signal);
      else await runtime.writeFiles([file], signal);
    }
    return null;
  } catch (thrown) {
    signal.throwIfAborted();
    await requireWorking(runtime, signal);
    return asFloeError(thrown, 'runtime_failed').message;
  }
}

/**
 * Reads a source of tests on the host, if it is a file. Rejects with `evaluator_failed` when the file cannot be read, because the agent cannot
 * cause that.
 */
async function testSource(
  path: string,
  { tests_target }: HarborEvaluatorConfig,
): Promise<{ readonly dir: string; readonly file: SandboxFile | null }> {
  try {
    const info = await stat(path);
    if (info.isDirectory()) return { dir: path, file: null };
    const content = await readFile(path);
    return { dir: path, file: { path: `${tests_target}/${basename(path)}`, content, mode: info.mode & 0o777 } };
  } catch (cause) {
    const message = `harbor: config.tests: ${path} cannot be read: ${(cause as Error).message}`;
    throw new FloeError('evaluator_failed', message, { path }, cause);
  }
}

/**
 * Reads the rewards that the script wrote: `reward.json`, or else `reward.txt`. Resolves with `null` when the script wrote neither, and with
 * the reason as a text when a file is invalid.
 */
async function readReward({ config, signal }: Run, runtime: Runtime): Promise<HarborReward | string | null> {
  const read = (name: string): Promise<Buffer | null> =>
    runtime.readFile(`${config.verifier_dir}/${name}`, MAX_REWARD_FILE_BYTES, signal);
  try {
    if (config.grading === 'polar') return parsePolarReward(await read('reward.txt'), await read('reward.json'));
    const json = await read('reward.json');
    if (json !== null) return parseRewardJson(json);
    const text = await read('reward.txt');
    return text === null ? null : parseRewardText(text);
  } catch (thrown) {
    if (!isRuntimeFailure(thrown)) throw thrown;
    // A runtime that still runs commands refused the file itself, for example because it is too large.
    await requireWorking(runtime, signal);
    return thrown.message;
  }
}

/** Returns the result when the tests could not be placed or started. The agent caused this, in its own runtime or with the copied files. */
function blocked(run: Run, facts: Record<string, unknown>, details: Record<string, unknown>): Evaluation {
  const changed = run.context.freshRuntime === null || facts.carried_files !== 0;
  if (changed) return { reward: 0, details: { failure: 'tests_blocked', ...facts, ...details } };
  throw new FloeError('evaluator_failed', 'harbor: the tests could not be placed in a fresh runtime', details);
}

function endOf(ran: Timed<ExecResult>): Record<string, unknown> {
  return ran.timedOut ? { timed_out: true } : tailOf(ran.value);
}

function failed({ context, config }: Run, failure: ScriptFailure, details: Record<string, unknown>): Evaluation {
  if (context.freshRuntime === null || config.agent_failures.includes(failure)) {
    return { reward: 0, details: { failure, ...details } };
  }
  throw new FloeError('evaluator_failed', `harbor: ${failure} in a fresh runtime`, { failure, ...details });
}
