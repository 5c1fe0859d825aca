import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { changedFiles, checkOut, commitOf, RequestError } from '../../../../bench/compare/checkout.ts';

let root: string;
const git = (...args: readonly string[]): string =>
  execFileSync('git', ['-C', root, '-c', 'user.name=a', '-c', 'user.email=a@example.com', ...args], {
    encoding: 'utf8',
  }).trim();

beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), 'floe-compare-'));
  git('init', '--quiet');
  mkdirSync(join(root, 'packages'));
  writeFileSync(join(root, 'packages', 'a.ts'), '1');
  git('add', '.');
  git('commit', '--quiet', '--message', 'first');
});
afterAll(() => rmSync(root, { recursive: true, force: true }));

it('commitOf finds the commit of a branch, a tag or a hash', () => {
  const head = git('rev-parse', 'HEAD');
  git('tag', 'v1');
  expect(['HEAD', 'v1', head.slice(0, 8)].map((ref) => commitOf(root, ref))).toEqual([head, head, head]);
});

it.each(['no-such-branch', '--help', ''])('commitOf refuses %j, which names no commit', (ref) => {
  expect(() => commitOf(root, ref)).toThrow(
    new RequestError(`there is no commit "${ref}"; name a branch, a tag or a hash of this checkout`),
  );
});

it('checkOut refuses a commit that has no starter of benches', () => {
  expect(() => checkOut(root, commitOf(root, 'HEAD'))).toThrow(
    /has no tools\/run\.js, so it is too old to be compared/,
  );
});

it('changedFiles lists uncommitted changes of compiled files, and no others', () => {
  expect(changedFiles(root)).toEqual([]);
  writeFileSync(join(root, 'packages', 'a.ts'), '2');
  writeFileSync(join(root, 'README.md'), '');
  expect(changedFiles(root)).toEqual(['packages/a.ts']);
});
