import { execFileSync } from 'node:child_process';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import type { Runtime } from '../../../src/api/runtime.ts';
import { pruneGitHistory } from '../../../src/workspace/git-history.ts';
import { never, Workbench } from '../../backends/workbench.ts';

const missing = (() => {
  try {
    execFileSync('git', ['--version']);
    return null;
  } catch {
    return 'git is not installed: apt-get install git';
  }
})();

const GIT =
  'git -c user.name=t -c user.email=t@t -c commit.gpgsign=false -c init.defaultBranch=main -c protocol.file.allow=always';

/** Creates a repository whose HEAD has ancestors. It also contains later commits in every place where git can keep them. */
const REPOSITORY = `set -e
${GIT} init -q . ; echo one > f; git add f; ${GIT} commit -q -m one; ${GIT} tag -a -m past v1
echo two > f; ${GIT} commit -q -a -m two; git rev-parse HEAD > base
echo SOLUTION > f; ${GIT} commit -q -a -m three; ${GIT} tag v2; ${GIT} tag -a -m future v3
git branch fixed; git update-ref refs/custom/x HEAD; git rev-parse HEAD > ../future
git clone -q --bare . ../origin.git; git remote add origin ../origin.git; git fetch -q origin; git remote set-head origin fixed
${GIT} notes add -m note HEAD
git reset -q --hard "$(cat base)"; git update-ref ORIG_HEAD fixed
echo STASHED > f; ${GIT} stash -q
git gc -q; for pack in .git/objects/pack/*.pack; do touch "\${pack%.pack}.keep"; done
echo staged > g; git add g; echo untracked > h`;

describeIf(missing, 'pruneGitHistory', () => {
  let bench: Workbench;
  beforeAll(async () => {
    bench = await Workbench.open();
  });
  afterAll(() => bench.close());

  async function repository(
    script = REPOSITORY,
  ): Promise<{ runtime: Runtime; sh: (command: string) => Promise<string> }> {
    const runtime = await bench.start('local');
    const sh = async (command: string): Promise<string> => {
      const { exitCode, stdout, stderr } = await runtime.exec({ command }, never);
      if (exitCode !== 0) throw new Error(`${command} exited with ${exitCode}: ${stderr}`);
      return stdout.trim();
    };
    await sh(`mkdir repo; cd repo; ${script}`);
    return { runtime, sh };
  }

  it('leaves no commit, file or name of what came after HEAD', async () => {
    const { runtime, sh } = await repository();
    const future = await sh('cat future');
    expect(await sh(`cd repo; git cat-file -t ${future}`)).toBe('commit');
    await pruneGitHistory(runtime, 'repo', never);
    expect(await sh(`cd repo; git cat-file -e ${future} 2>/dev/null || echo gone`)).toBe('gone');
    expect(await sh('cd repo; git log --all --oneline | wc -l; git reflog --all; git stash list; git remote')).toBe(
      '2',
    );
    expect(await sh("cd repo; git for-each-ref --format='%(refname)'")).toBe('refs/heads/main\nrefs/tags/v1');
    const objects = 'git cat-file --batch-all-objects --batch-check="%(objectname)" | git cat-file --batch';
    expect(await sh(`cd repo; ${objects} | grep -a -c -e SOLUTION -e STASHED || true`)).toBe('0');
    expect(await sh('cd repo; ls .git')).not.toMatch(/ORIG_HEAD|FETCH_HEAD|logs/);
    await runtime.stop();
  });

  it('changes neither HEAD, nor the index, nor the files', async () => {
    const { runtime, sh } = await repository();
    const state = 'cd repo; git rev-parse HEAD; git symbolic-ref HEAD; git status --porcelain; cat f g h; git describe';
    const before = await sh(state);
    await pruneGitHistory(runtime, 'repo', never);
    expect(await sh(state)).toBe(before);
    await runtime.stop();
  });

  it('keeps a detached HEAD', async () => {
    const { runtime, sh } = await repository(`${REPOSITORY}; git stash -q -u; git checkout -q "$(git rev-parse HEAD)"`);
    const head = await sh('cd repo; git rev-parse HEAD');
    await pruneGitHistory(runtime, 'repo', never);
    expect(await sh("cd repo; git rev-parse HEAD; git for-each-ref --format='%(refname)'")).toBe(
      `${head}\nrefs/tags/v1`,
    );
    await runtime.stop();
  });

  it('prunes submodules, too', async () => {
    const { runtime, sh } = await repository(`mkdir ../sub; (cd ../sub; ${REPOSITORY.replaceAll('../', '../sub-')})
      ${GIT} init -q .; ${GIT} submodule -q add ../sub sub; git -C sub fetch -q origin '+refs/*:refs/all/*'; ${GIT} commit -q -m all`);
    const future = await sh('cat sub-future');
    expect(await sh(`git -C repo/sub cat-file -t ${future}`)).toBe('commit');
    await pruneGitHistory(runtime, 'repo', never);
    expect(await sh(`git -C repo/sub cat-file -e ${future} 2>/dev/null || echo gone`)).toBe('gone');
    await runtime.stop();
  });

  it('makes a repository that borrows objects independent of the lender', async () => {
    const { runtime, sh } = await repository(`${REPOSITORY}; git clone -q --shared . ../borrower`);
    await pruneGitHistory(runtime, 'borrower', never);
    await sh('rm -rf repo; cd borrower; git fsck; git log');
    expect(await sh('cd borrower; git log --all --oneline | wc -l')).toBe('2');
    await runtime.stop();
  });

  it.each([
    ['a directory without a repository', 'true', 'there is no git repository'],
    ['a repository without a commit', `${GIT} init -q .`, 'has no commit'],
    ['a missing directory', 'cd ..; rm -r repo', 'there is no directory'],
    [
      'a repository whose objects cannot be removed',
      `${REPOSITORY}; git config extensions.preciousObjects true; git config core.repositoryFormatVersion 1`,
      'cannot be',
    ],
  ])('rejects for %s', async (_, script, message) => {
    const { runtime } = await repository(script);
    await expect(pruneGitHistory(runtime, 'repo', never)).rejects.toMatchObject({
      code: 'prepare_failed',
      message: expect.stringContaining(message),
    });
    await runtime.stop();
  });
});
