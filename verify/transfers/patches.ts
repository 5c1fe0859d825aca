/** A patch that an agent prints in the place of its changes. */
export type HostilePatch = { readonly name: string; readonly text: (outside: string) => string };

function newFile(path: string, mode = '100644', content = 'escaped'): string {
  return `diff --git a/${path} b/${path}\nnew file mode ${mode}\n--- /dev/null\n+++ b/${path}\n@@ -0,0 +1 @@\n+${content}\n`;
}

function link(path: string, target: string): string {
  return `${newFile(path, '120000', target)}\\ No newline at end of file\n`;
}

const UP = '../'.repeat(12);

export const PATCHES: readonly HostilePatch[] = [
  { name: 'a path that leaves the repository', text: (outside) => newFile(`${UP}${outside.slice(1)}/new`) },
  {
    name: 'an absolute path',
    text: (outside) =>
      newFile(outside).replaceAll(`a/${outside}`, outside).replaceAll(`b/${outside}`, `${outside}/new`),
  },
  { name: 'a link, and a file below the link', text: (outside) => `${link('l', outside)}${newFile('l/new')}` },
  {
    name: 'a relative link, and a file below the link',
    text: (outside) => `${link('l', `${UP}${outside.slice(1)}`)}${newFile('l/new')}`,
  },
  { name: 'a path in .git', text: () => newFile('.git/hooks/post-commit', '100755') },
  { name: 'the mode of a device', text: () => newFile('d', '060000') },
  {
    name: 'a rename to a path outside',
    text: (outside) =>
      `diff --git a/start b/${UP}x\nsimilarity index 100%\nrename from start\nrename to ${UP}${outside.slice(1)}/new\n`,
  },
  {
    name: 'a copy of a path outside',
    text: (outside) =>
      `diff --git a/x b/y\nsimilarity index 100%\ncopy from ${UP}${outside.slice(1)}/file\ncopy to y\n`,
  },
  { name: 'more than 16 MiB', text: () => newFile('large', '100644', 'x'.repeat(17 * 2 ** 20)) },
  { name: 'no text', text: () => '\0\xff\xfe'.repeat(100) },
];
