import { randomBytes } from 'node:crypto';
import { FloeError } from '@floe-rl/core';
import type { Runtime } from '../api/runtime.ts';

/**
 * Shell script that removes from a repository everything that is neither HEAD nor one of its ancestors. Arguments: the path of the repository,
 * a random text.
 *
 * The script writes the text as an object that nothing refers to. It fails when this object is left at the end. It also fails when another
 * object is left that HEAD, the index and the kept tags do not reach.
 */
const PRUNE_SCRIPT = `set -u
fail() { echo "$1" >&2; exit 1; }
cd -- "$1" || fail "there is no directory $1"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_OPTIONAL_LOCKS=0 LC_ALL=C
g() { git -c safe.directory='*' -c core.fsmonitor=false -c core.hooksPath=/dev/null -c gc.auto=0 "$@"; }
dir=$(g rev-parse --absolute-git-dir 2>&1) || fail "there is no git repository: $dir"
prune() {
  export GIT_DIR="$1"
  head=$(g rev-parse -q --verify 'HEAD^{commit}') || fail "the repository $1 has no commit"
  current=$(g symbolic-ref -q HEAD || echo none)
  spare=$(printf '%s' "$2" | g hash-object -w --stdin) || fail 'no object can be written'
  g for-each-ref --merged HEAD --format='%(refname)' refs/tags > "$1/floe-kept-refs" || fail 'the tags cannot be listed'
  echo "$current" >> "$1/floe-kept-refs"
  g for-each-ref --format='%(refname)' | grep -v -x -F -f "$1/floe-kept-refs" | while read -r ref; do
    g update-ref --no-deref -d "$ref" || exit 1
  done || fail 'a reference cannot be removed'
  g remote | while read -r remote; do g remote remove "$remote" || exit 1; done || fail 'a remote cannot be removed'
  rm -rf "$1/logs" "$1/worktrees" "$1/objects/info/commit-graph" "$1/objects/info/commit-graphs" "$1/floe-kept-refs" "$1"/rebase-*
  rm -f "$1"/FETCH_HEAD "$1"/ORIG_HEAD "$1"/*_HEAD "$1"/BISECT_* "$1"/AUTO_MERGE "$1"/objects/pack/*.keep
  g repack -a -d -q || fail 'the objects cannot be packed'
  rm -f "$1/objects/info/alternates"
  g prune --expire=now || fail 'unused objects cannot be removed'
  g pack-refs --all || fail 'the references cannot be packed'
  [ "$(g rev-parse HEAD)" = "$head" ] || fail 'HEAD has changed'
  if g cat-file -e "$spare" 2>/dev/null; then fail "git keeps objects that nothing refers to, among them $spare"; fi
  left=$(g fsck --unreachable --no-reflogs --no-dangling --no-progress --connectivity-only 2>&1) || fail "the repository is damaged: $left"
  case $left in *unreachable*) fail "objects are left that HEAD does not reach: $left";; esac
}
prune "$dir" "$2"
unset GIT_DIR
[ -d "$dir/modules" ] || exit 0
find "$dir/modules" -type d -name objects | while read -r objects; do
  [ -e "\${objects%/objects}/HEAD" ] || continue
  (prune "\${objects%/objects}" "$2") || exit 1
done`;

/** Maximum number of characters of the script's error output that the error message quotes. */
const STDERR_CHARS = 1_000;

/**
 * Removes everything from a git repository in the sandbox that an agent could copy a solution from: branches, tags and remotes that are not
 * ancestors of HEAD, reflogs and stashes. It also removes all objects that HEAD does not reach. Submodules are pruned in the same way. HEAD,
 * the index and the files do not change. Rejects with `prepare_failed` when there is no repository with a commit, or when such objects are
 * left.
 */
export async function pruneGitHistory(runtime: Runtime, repo: string, signal: AbortSignal): Promise<void> {
  const text = randomBytes(16).toString('hex');
  const result = await runtime.exec({ command: ['/bin/sh', '-c', PRUNE_SCRIPT, 'floe-prune', repo, text] }, signal);
  if (result.exitCode === 0) return;
  const stderr = result.stderr.trim().slice(-STDERR_CHARS);
  throw new FloeError('prepare_failed', `the git history of ${repo} cannot be pruned: ${stderr}`, { stderr, repo });
}
