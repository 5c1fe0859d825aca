import { FloeError, VirtualClock } from '@floe-rl/core';
import type { Runtime } from '@floe-rl/sandbox';
import { afterEach, describe, expect, it } from 'vitest';
import type { Evaluation } from '../src/evaluator.ts';
import { evaluatorRegistry } from '../src/registry.ts';
import { type DirectoryRuntime, directoryRuntime, losing, shell } from './directory-runtime.ts';
import { sessionOf } from './evaluated-session.ts';

const GIT = 'git -c user.name=t -c user.email=t@t -c commit.gpgsign=false';
/** Script that creates a small repository, in which `sum.sh` has a defect and `check.sh` is the test suite. */
const PREPARE = `
git init -q .
printf 'echo 5\\n' > sum.sh
printf 'ignored.txt\\n' > .gitignore
printf 'if [ "$(sh sum.sh)" = 4 ]; then echo "PASSED check::sum"; else echo "FAILED check::sum - wrong"; fi\\necho "PASSED check::ready"\\n' > check.sh
git add -A
${GIT} commit -q -m start
`;
const EXPECTED = { 'check::sum': 'PASSED', 'check::ready': 'PASSED' };
const FIX = "printf 'echo 4\\n' > sum.sh\n";

/** Script that creates a program `trap.sh` in the home directory, which creates the file `ran` there when it is run. */
const TRAP = `printf '#!/bin/sh\\ntouch "%s/ran"\\n' "$HOME" > "$HOME/trap.sh"; chmod +x "$HOME/trap.sh"
`;

/** A command that never ends by itself. */
const HANG = 'tail -f /dev/null';

const open: Runtime[] = [];
afterEach(async () => {
  for (const runtime of open.splice(0)) await runtime.stop();
});

async function prepared(script = PREPARE): Promise<DirectoryRuntime> {
  const runtime = await directoryRuntime();
  open.push(runtime);
  await shell(runtime, script);
  return runtime;
}

type Setup = {
  readonly work?: string;
  readonly config?: Record<string, unknown>;
  readonly fresh?: DirectoryRuntime | null;
  readonly agent?: DirectoryRuntime;
  readonly clock?: VirtualClock;
  readonly env?: Record<string, string>;
  readonly signal?: AbortSignal;
};

async function grade({ work = '', config, fresh, agent, clock, env = {}, signal }: Setup): Promise<Evaluation> {
  const runtime = agent ?? (await prepared());
  if (work !== '') await shell(runtime, work);
  const freshRuntime = fresh === undefined ? await prepared() : fresh;
  const evaluator = evaluatorRegistry(clock).get('test_on_output');
  const spec = {
    strategy: 'test_on_output',
    config: { test_command: 'sh check.sh', expected_output_json: EXPECTED, ...config },
    env,
    refresh_runtime: freshRuntime !== null,
  };
  return evaluator.evaluate(
    { spec, status: 'COMPLETED', runtime, freshRuntime, session: sessionOf() },
    signal ?? new AbortController().signal,
  );
}

describe('test_on_output', () => {
  it('rewards work that makes the expected tests pass in a fresh runtime', async () => {
    const { reward, details } = await grade({ work: FIX });
    expect(reward).toBe(1);
    expect(details).toMatchObject({ matching_nodes: 2, unexpected_nodes: 0, differing: {} });
  });

  it('gives a reward of 0 for work after which an expected test still fails', async () => {
    const { reward, details } = await grade({ work: "printf 'echo 3\\n' > sum.sh" });
    expect(reward).toBe(0);
    expect(details.differing).toEqual({ 'check::sum': { expected: 'PASSED', found: 'FAILED' } });
  });

  it('compares the reported statuses even when the patch is empty', async () => {
    expect((await grade({})).reward).toBe(0);
    const failing = { 'check::sum': 'FAILED', 'check::ready': 'PASSED' };
    const graded = await grade({ config: { expected_output_json: failing } });
    expect(graded).toMatchObject({ reward: 1, details: { patch_bytes: 0 } });
  });

  it.each([
    ['a skipped test id', 'echo "SKIPPED check::sum"; echo "PASSED check::ready"', 'SKIPPED'],
    ['a missing test id', 'echo "PASSED check::ready"', null],
    [
      'a test id with a forged line in addition to the real one',
      'echo "PASSED check::sum"; sh check.sh',
      'CONFLICTING',
    ],
  ])('does not count %s as passed', async (_, test_command, found) => {
    const { reward, details } = await grade({ config: { test_command } });
    expect(reward).toBe(0);
    expect(details.differing).toEqual({ 'check::sum': { expected: 'PASSED', found } });
  });

  it('counts unexpected test ids without changing the reward', async () => {
    const test_command = 'sh check.sh; echo "FAILED own::test"; echo "PASSED own::other"';
    const graded = await grade({ work: FIX, config: { test_command } });
    expect(graded).toMatchObject({ reward: 1, details: { unexpected_nodes: 2 } });
  });

  it('gives the share of the expected statuses with reward_granularity: pass_rate, and always as a component', async () => {
    const config = { reward_granularity: 'pass_rate' };
    expect(await grade({ config })).toMatchObject({ reward: 0.5, components: { pass_rate: 0.5 } });
    expect(await grade({ work: FIX, config })).toMatchObject({ reward: 1, components: { pass_rate: 1 } });
    expect(await grade({})).toMatchObject({ reward: 0, components: { pass_rate: 0.5 } });
  });

  it('ignores the exit code of the test command', async () => {
    expect((await grade({ work: FIX, config: { test_command: 'sh check.sh; exit 3' } })).reward).toBe(1);
  });

  it('transfers commits, new files, deletions, modes and binary content', async () => {
    const fresh = await prepared();
    const work = `${FIX}
      ${GIT} commit -q -a -m fix
      mkdir 'new dir'; printf 'x' > 'new dir/fïle'; printf '\\000\\001\\377' > blob.bin; printf 'caf\\351\\n' > latin1.txt
      printf 'no' > ignored.txt; chmod +x check.sh; git rm -q --cached .gitignore; rm .gitignore; ln -s sum.sh link`;
    const graded = await grade({ work, fresh });
    expect(graded.reward).toBe(1);
    const found = await shell(fresh, 'ls; test -x check.sh; readlink link; od -An -tx1 blob.bin latin1.txt');
    expect(found).toBe(
      'blob.bin\ncheck.sh\nignored.txt\nlatin1.txt\nlink\nnew dir\nsum.sh\nsum.sh\n 00 01 ff 63 61 66 e9 0a\n',
    );
  });

  it('leaves out files that git ignores', async () => {
    const fresh = await prepared();
    await grade({ work: `${FIX} printf no > ignored.txt`, fresh });
    expect(await shell(fresh, 'ls')).toBe('check.sh\nsum.sh\n');
  });

  it("does not change the agent's index", async () => {
    const agent = await prepared();
    await grade({ agent, work: `${FIX} printf x > new.txt` });
    expect(await shell(agent, 'git status --porcelain; ls "$HOME"')).toMatch(/^ M sum\.sh\n\?\? new\.txt\n/);
  });

  it('drops excluded paths, also when a patch command hides one behind a rename', async () => {
    const cheat = `printf 'echo "PASSED check::sum"; echo "PASSED check::ready"\\n' > check.sh`;
    const config = { exclude_patterns: ['check.sh', 'tests/*'] };
    expect((await grade({ work: cheat })).reward).toBe(1);
    expect((await grade({ work: cheat, config })).reward).toBe(0);
    expect((await grade({ work: `${cheat}\n${FIX}`, config })).reward).toBe(1);
    const fresh = await prepared();
    const rename = 'git mv check.sh moved.sh';
    const patch_command = 'git diff HEAD -M';
    await grade({ work: rename, fresh, config: { ...config, patch_command } });
    expect(await shell(fresh, 'ls')).toBe('check.sh\nmoved.sh\nsum.sh\n');
  });

  it('rejects exclude patterns when there is no fresh runtime', async () => {
    const config = { exclude_patterns: ['a'] };
    await expect(grade({ fresh: null, config })).rejects.toMatchObject({ code: 'schema_violation' });
    const spec = { strategy: 'test_on_output', env: {}, refresh_runtime: false };
    const full = { ...spec, config: { test_command: 'x', expected_output_json: { a: 'PASSED' }, ...config } };
    expect(() => evaluatorRegistry().check(full)).toThrow(expect.objectContaining({ code: 'schema_violation' }));
    expect(() => evaluatorRegistry().check({ ...full, refresh_runtime: true })).not.toThrow();
  });

  it("gives a reward of 0 for a patch that does not apply, with git's message", async () => {
    const patch_command = `printf 'diff --git a/sum.sh b/sum.sh\\n--- a/sum.sh\\n+++ b/sum.sh\\n@@ -1 +1 @@\\n-other\\n+x\\n'`;
    const { reward, details } = await grade({ config: { patch_command } });
    expect(reward).toBe(0);
    expect(details).toMatchObject({ failure: 'patch_does_not_apply', exit_code: 1 });
    expect(details.stderr_tail).toContain('patch does not apply');
  });

  it('gives a reward of 0 for a patch with paths outside of the repository', async () => {
    const patch_command = `printf 'diff --git a/../../x b/../../x\\nnew file mode 100644\\n--- /dev/null\\n+++ b/../../x\\n@@ -0,0 +1 @@\\n+x\\n'`;
    expect(await grade({ config: { patch_command } })).toMatchObject({
      reward: 0,
      details: { failure: 'patch_does_not_apply' },
    });
  });

  it('gives a reward of 0 for a patch above the size limit', async () => {
    const patch_command = 'head -c 17000000 /dev/zero';
    expect(await grade({ config: { patch_command } })).toMatchObject({
      reward: 0,
      details: { failure: 'patch_too_large', bytes: 17_000_000 },
    });
  });

  it('gives a reward of 0 when the agent deleted its repository or only its .git folder', async () => {
    expect(await grade({ work: 'rm -rf .git' })).toMatchObject({ reward: 0, details: { failure: 'patch_failed' } });
    const agent = await prepared();
    await shell(agent, `rm -rf "${agent.paths.workdir}"`);
    expect(await grade({ agent })).toMatchObject({ reward: 0, details: { failure: 'patch_failed' } });
  });

  it('fails without a reward when the fresh runtime has no repository', async () => {
    const fresh = await prepared('true');
    await expect(grade({ fresh })).rejects.toMatchObject({ code: 'evaluator_failed' });
    await expect(grade({ config: { repo_dir: '/nowhere' } })).rejects.toMatchObject({ code: 'evaluator_failed' });
  });

  it('gives a reward of 0 when the tests report nothing, but fails when the patch is empty and the runtime is fresh', async () => {
    const config = { test_command: 'exit 127' };
    expect(await grade({ work: FIX, config })).toMatchObject({ reward: 0, details: { failure: 'no_nodes' } });
    expect(await grade({ config, fresh: null })).toMatchObject({ reward: 0, details: { failure: 'no_nodes' } });
    await expect(grade({ config })).rejects.toMatchObject({ code: 'evaluator_failed' });
  });

  it.each(['the time limit of the test command', 'the time budget of the whole evaluation'])(
    'gives a reward of 0 when the test command runs until the end of %s, but fails when the patch is empty and the runtime is fresh',
    async (limit) => {
      for (const [work, outcome] of [
        [FIX, { reward: 0, details: { failure: 'test_timeout' } }],
        ['', { code: 'evaluator_failed' }],
      ] as const) {
        const clock = new VirtualClock();
        const budget = new AbortController();
        const fresh = await prepared();
        // The test command runs until it is killed. The time limit under test ends as soon as the command has started.
        const hanging: DirectoryRuntime = {
          ...fresh,
          exec: (request, signal) => {
            const running = fresh.exec(request, signal);
            if (request.command !== HANG) return running;
            if (limit.includes('command')) clock.advance(5_000);
            else budget.abort(new FloeError('deadline_exceeded', 'the budget is used up'));
            return running;
          },
        };
        const config = { test_command: HANG, test_timeout: 5 };
        const settled = grade({ work, clock, fresh: hanging, signal: budget.signal, config });
        await expect(settled.catch((thrown) => thrown)).resolves.toMatchObject(outcome);
      }
    },
  );

  it('rejects with the reason of its signal', async () => {
    const runtime = await prepared();
    const controller = new AbortController();
    controller.abort(new Error('cancelled here'));
    const spec = {
      strategy: 'test_on_output',
      config: { test_command: 'sh check.sh', expected_output_json: EXPECTED },
      env: {},
      refresh_runtime: false,
    };
    const context = { spec, status: 'COMPLETED' as const, runtime, freshRuntime: null, session: sessionOf() };
    const evaluator = evaluatorRegistry().get('test_on_output');
    await expect(evaluator.evaluate(context, controller.signal)).rejects.toThrow('cancelled here');
  });

  it('runs the tests in the repository and with the environment of the task', async () => {
    const config = {
      test_command: 'echo "PASSED $WHERE::$(basename "$PWD")"',
      expected_output_json: '{"x::sub":"PASSED"}',
    };
    const agent = await prepared('mkdir sub');
    const repo_dir = `${agent.paths.workdir}/sub`;
    const graded = await grade({ agent, fresh: null, config: { ...config, repo_dir }, env: { WHERE: 'x' } });
    expect(graded.reward).toBe(1);
  });

  it('uses an equal tree in another commit as the base, and HEAD when the base is missing', async () => {
    const other = await prepared(`${PREPARE}\n${GIT} commit -q --amend -m 'other time'`);
    expect((await grade({ work: `${FIX}${GIT} commit -q -a -m fix`, fresh: other })).reward).toBe(1);
    const grown = await prepared(`${PREPARE}\nprintf hidden > hidden.txt; git add -A; ${GIT} commit -q -m more`);
    expect((await grade({ work: FIX, fresh: grown })).reward).toBe(1);
  });

  it.each([
    ['a file system monitor', 'git config core.fsmonitor "$PWD/trap.sh"'],
    ['a filter for all files', 'git config filter.trap.clean "$PWD/trap.sh"; echo \'* filter=trap\' > .gitattributes'],
    [
      'a file system monitor in the home directory',
      'git config --file "$HOME/.gitconfig" core.fsmonitor "$PWD/trap.sh"',
    ],
    ['a folder of hooks', 'mkdir hooks; cp trap.sh hooks/post-index-change; git config core.hooksPath "$PWD/hooks"'],
  ])('runs no program of the agent that git would start as %s', async (_, setting) => {
    const agent = await prepared();
    // The script trap.sh must not be run. It would replace the patch by a link to a file that cannot be read. It would also create the file
    // `ran`, which shows the test that git started it.
    await shell(
      agent,
      `${TRAP}mv "$HOME/trap.sh" trap.sh\nprintf 'ln -sf /proc/self/mem "$FLOE_PATCH"\\nexit 1\\n' >> trap.sh\n${setting}`,
    );
    const graded = await grade({ agent, work: FIX });
    expect(graded.reward).toBe(1);
    expect(await shell(agent, 'ls "$HOME"')).not.toContain('ran');
  });

  it.each([
    ['another hash function', 'git init -q --object-format=sha256 .', ''],
    ['converted line ends', "git init -q .; git config core.autocrlf input; printf 'x\\r\\n' > dos.txt", ''],
    ['ignored modes', 'git init -q .', 'git config core.fileMode false; chmod +x check.sh'],
    ['a sparse checkout', 'git init -q .; mkdir out; echo x > out/x', 'git sparse-checkout set'],
    [
      'a list of ignored files outside of it',
      'git init -q .; git config core.excludesFile "$HOME/list"',
      'echo new.txt > "$HOME/list"; echo no > new.txt',
    ],
    [
      'a list of ignored files in the home directory',
      "git init -q .; git config core.excludesFile '~/list'",
      'echo new.txt > "$HOME/list"; echo no > new.txt',
    ],
  ])('makes the patch that git diff prints in a repository with %s', async (_, init, last) => {
    const script = `${PREPARE.replace('git init -q .', init)}\n${last}`;
    const [agent, fresh] = [await prepared(script), await prepared(script)];
    const { reward, details } = await grade({ agent, fresh, work: FIX });
    expect(reward).toBe(1);
    expect(details.patch_bytes).toBe(Number(await shell(agent, 'git diff --full-index | wc -c')));
  });

  it.each(['.gitconfig', '.config/git/config'])(
    'runs no program that %s of the agent names, with a version of git before 2.32',
    async (file) => {
      const agent = await prepared();
      const setting = `${TRAP}mkdir -p "$HOME/.config/git"; git config --file "$HOME/${file}" core.fsmonitor "$HOME/trap.sh"`;
      // This `git` ignores GIT_CONFIG_GLOBAL, as versions before 2.32 do.
      const old = `mkdir "$HOME/bin"; printf '#!/bin/sh\\nunset GIT_CONFIG_GLOBAL\\nexec "%s" "$@"\\n' "$(command -v git)" > "$HOME/bin/git"
        chmod +x "$HOME/bin/git"`;
      await shell(agent, `${setting}\n${old}`);
      const env = { PATH: `${agent.paths.home}/bin:${process.env.PATH}` };
      expect((await grade({ agent, work: FIX, env })).reward).toBe(1);
      expect(await shell(agent, 'ls "$HOME"')).not.toContain('ran');
    },
  );

  it('runs no program of the agent in a submodule', async () => {
    const agent = await prepared();
    // The agent commits a submodule and deletes the base commit. The patch is then made from the agent's commit, which contains the
    // submodule.
    const work = `
      ${TRAP}
      git init -q sub; cd sub; printf x > x; git add x; ${GIT} commit -q -m sub
      git config core.fsmonitor "$HOME/trap.sh"; git config filter.trap.clean "$HOME/trap.sh"
      echo '* filter=trap' > .git/info/attributes; touch -d @1 x; cd ..
      git add sub 2> /dev/null; ${GIT} commit -q --amend -m own
      git config core.sparseCheckout true; echo '/*' > .git/info/sparse-checkout
      rm -f "$HOME/ran"; git reflog expire --expire=all --all; git gc -q --prune=all; rm -f "$HOME/ran"`;
    expect((await grade({ agent, work: `${FIX}${work}` })).reward).toBe(1);
    expect(await shell(agent, 'git ls-tree HEAD sub')).toMatch(/^160000 commit/);
    expect(await shell(agent, 'ls "$HOME"')).not.toContain('ran');
  });

  it('runs no program of the agent to fetch a missing commit', async () => {
    const agent = await prepared();
    const work = `
      ${TRAP} echo 'exit 1' >> "$HOME/trap.sh"
      git config core.repositoryFormatVersion 1; git config extensions.partialClone far
      git config remote.far.promisor true; git config remote.far.url ssh://host/path
      git config core.sshCommand "$HOME/trap.sh"
      printf '%040d\\n' 1 > ".git/$(git symbolic-ref HEAD)"; rm -rf .git/objects/??`;
    expect((await grade({ agent, work })).details).toMatchObject({ failure: 'patch_failed' });
    expect(await shell(agent, 'ls "$HOME"')).not.toContain('ran');
  });

  it("leaves out files that the repository's own list of ignored files names", async () => {
    const fresh = await prepared();
    await grade({ work: `${FIX} echo local.txt >> .git/info/exclude; printf no > local.txt`, fresh });
    expect(await shell(fresh, 'ls')).toBe('check.sh\nsum.sh\n');
  });

  it("does not read the list of ignored files in the agent's home directory", async () => {
    const [agent, fresh] = [await prepared(), await prepared()];
    await shell(agent, 'mkdir -p "$HOME/.config/git"; echo "new.txt" > "$HOME/.config/git/ignore"');
    await grade({ agent, fresh, work: `${FIX} printf new > new.txt` });
    expect(await shell(fresh, 'ls')).toBe('check.sh\nnew.txt\nsum.sh\n');
  });

  it('makes the patch when the repository of the work tree is in another folder', async () => {
    const fresh = await prepared();
    const work = `${FIX} mv .git "$HOME/moved.git"; echo "gitdir: $HOME/moved.git" > .git`;
    expect((await grade({ work, fresh })).reward).toBe(1);
  });

  it("gives a reward of 0 when the agent's runtime breaks while its patch is read", async () => {
    const agent = await prepared();
    const broken: DirectoryRuntime = {
      ...agent,
      readFile: () => Promise.reject(new FloeError('runtime_failed', 'read: Input/output error')),
    };
    expect(await grade({ agent: broken, work: FIX })).toMatchObject({
      reward: 0,
      details: { failure: 'patch_failed', error: 'read: Input/output error' },
    });
  });

  it("fails when the host breaks while the agent's patch is read", async () => {
    const agent = await prepared();
    const died = new FloeError('runtime_failed', 'the spawn helper died', { helper: 'died' });
    await expect(grade({ agent: { ...agent, readFile: () => Promise.reject(died) }, work: FIX })).rejects.toBe(died);

    const failed = new FloeError('runtime_failed', 'no more processes');
    const fresh = await prepared();
    let broken = false;
    const brokenHost = {
      agent: {
        ...agent,
        readFile: async () => {
          broken = true;
          throw failed;
        },
      },
      fresh: {
        ...fresh,
        exec: (...args) => (broken ? Promise.reject(failed) : fresh.exec(...args)),
      } as DirectoryRuntime,
    };
    await expect(grade({ ...brokenHost, work: FIX })).rejects.toBe(failed);
  });

  it("gives the right reward when the size of the patch in the agent's runtime is printed in vain", async () => {
    const agent = await prepared();
    expect(await grade({ agent: losing(agent, 'wc -c'), work: FIX })).toMatchObject({ reward: 1 });
    const patch_command = 'head -c 17000000 /dev/zero';
    expect(await grade({ agent: losing(agent, 'wc -c'), config: { patch_command } })).toMatchObject({
      reward: 0,
      details: { failure: 'patch_too_large', bytes: null },
    });
  });

  it.each([
    ['the commit of the repository', 'git rev-parse'],
    ['the size of the applied patch', 'git apply'],
  ])(
    'fails so that the session is retried when the output with %s is lost in the fresh runtime',
    async (what, part) => {
      await expect(grade({ fresh: losing(await prepared(), part), work: FIX })).rejects.toMatchObject({
        code: 'runtime_failed',
        message: `test_on_output: a command in the fresh runtime succeeded without printing ${what}; its output was lost`,
      });
    },
  );

  it("gives a reward of 0 when the tests cannot run in the agent's own runtime, but fails in a fresh one", async () => {
    const failing = async (): Promise<DirectoryRuntime> => {
      const runtime = await prepared();
      const exec: DirectoryRuntime['exec'] = (request, signal) =>
        request.command === 'sh check.sh'
          ? Promise.reject(new FloeError('runtime_failed', 'could not run a command'))
          : runtime.exec(request, signal);
      return { ...runtime, exec };
    };
    const own = await grade({ agent: await failing(), fresh: null });
    expect(own).toMatchObject({ reward: 0, details: { failure: 'runtime_broken' } });
    await expect(grade({ fresh: await failing(), work: FIX })).rejects.toMatchObject({ code: 'runtime_failed' });
  });
});
