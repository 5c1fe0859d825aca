import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { never } from '../../../../../sandbox/test/backends/workbench.ts';
import { strReplaceEditorToolset } from '../../../../src/tools/built-in/str-replace-editor.ts';
import { TestBox } from '../../../tools/open-box.ts';

let sandbox: TestBox;
let call: (args: Record<string, unknown>) => Promise<string>;

beforeAll(async () => {
  sandbox = await TestBox.open();
});
afterAll(() => sandbox.close());
beforeEach(async () => {
  const opened = await sandbox.use(strReplaceEditorToolset);
  call = async (args) => String((await opened.call('str_replace_editor', args)).content);
});

const write = (path: string, content: string | Buffer) => sandbox.box.writeFile(path, content, never);
const read = async (path: string) => (await sandbox.box.readFile(path, {}, never)).text;
const shell = async (command: string) => {
  const { exitCode } = await sandbox.box.shell().run(command, { timeoutMs: 60_000 }, never);
  expect(exitCode).toBe(0);
};

describe('view', () => {
  it('numbers the lines of a file, or of a range', async () => {
    await write('lines', 'one\ntwo\nthree\n');
    expect(await call({ command: 'view', path: 'lines' })).toBe('     1\tone\n     2\ttwo\n     3\tthree');
    expect(await call({ command: 'view', path: 'lines', view_range: [2, 2] })).toBe('     2\ttwo');
    expect(await call({ command: 'view', path: 'lines', view_range: [2, -1] })).toBe('     2\ttwo\n     3\tthree');
    expect(await call({ command: 'view', path: 'lines', view_range: [9, 12] })).toContain('has fewer than 9 lines');
  });

  it.each([[[0, 2]], [[3, 2]], [[1, -2]]])('refuses the range %j', async (view_range) => {
    await write('lines', 'one\ntwo\nthree\n');
    await expect(call({ command: 'view', path: 'lines', view_range })).rejects.toThrow(/view_range must be/);
  });

  it('shows the start of a huge file, and where to continue', async () => {
    await write('huge', 'a line\n'.repeat(400_000));
    const shown = await call({ command: 'view', path: 'huge' });
    expect(shown.length).toBeLessThan(60_000);
    const [, next] = /continue with view_range \[(\d+), -1\]/.exec(shown) ?? [];
    expect(await call({ command: 'view', path: 'huge', view_range: [Number(next), Number(next)] })).toBe(
      `${String(next).padStart(6)}\ta line`,
    );
  });

  it('cuts a line that is too long', async () => {
    await write('long', `${'x'.repeat(2_000_000)}\nend\n`);
    const shown = await call({ command: 'view', path: 'long' });
    expect(shown).toContain('[the line is cut]');
    expect(shown.length).toBeLessThan(30_000);
  });

  it('lists a directory two levels deep without hidden entries', async () => {
    await shell('mkdir -p tree/sub/deep .git tree/.hidden && touch tree/a tree/sub/b tree/sub/deep/c tree/.hidden/d');
    const shown = await call({ command: 'view', path: 'tree' });
    expect(shown).toBe(`${sandbox.workdir}/tree:\na\nsub/\nsub/b\nsub/deep/`);
    await expect(call({ command: 'view', path: 'tree', view_range: [1, 2] })).rejects.toThrow(/is a directory/);
  });

  it('refuses binary files, missing files and pipes', async () => {
    await write('binary', Buffer.from([0, 1, 2, 255]));
    await shell('mkfifo pipe');
    await expect(call({ command: 'view', path: 'binary' })).rejects.toThrow(/not a text file/);
    await expect(call({ command: 'view', path: 'absent' })).rejects.toMatchObject({ reason: 'not_found' });
    await expect(call({ command: 'view', path: 'pipe' })).rejects.toMatchObject({ reason: 'not_a_directory' });
  });
});

describe('edits', () => {
  it('create a file with its directories, and replace one', async () => {
    expect(await call({ command: 'create', path: 'new/file', file_text: 'a\n' })).toMatch(/is created/);
    expect(await call({ command: 'create', path: 'new/file', file_text: 'b\n' })).toMatch(/is replaced/);
    expect(await read('new/file')).toBe('b\n');
    await call({ command: 'undo_edit', path: 'new/file' });
    expect(await read('new/file')).toBe('a\n');
    await expect(call({ command: 'undo_edit', path: 'new/file' })).rejects.toThrow(/its creation/);
  });

  it('replace text that occurs once, with special characters, and show the lines around', async () => {
    await write('code', 'a\nb $& $1\nc\n');
    const shown = await call({ command: 'str_replace', path: 'code', old_str: 'b $& $1', new_str: "$' $&\nä 漢字" });
    expect(await read('code')).toBe("a\n$' $&\nä 漢字\nc\n");
    expect(shown).toContain("     2\t$' $&\n     3\tä 漢字\n     4\tc");
  });

  it.each([
    ['text that does not occur', 'nowhere', /does not occur/],
    ['text with other white space', 'two  words', /with this white space/],
    ['text that occurs more than once', 'same', /occurs 2 times .* lines 1, 3;/],
    ['empty text', '', /old_str is empty/],
    ['text by equal text', 'x', /are equal/],
  ])('refuse to replace %s, and leave the file', async (_, old_str, message) => {
    const content = 'same\ntwo words\nsame\n';
    await write('twice', content);
    const args = { command: 'str_replace', path: 'twice', old_str, new_str: 'x' };
    await expect(call(args)).rejects.toThrow(message);
    expect(await read('twice')).toBe(content);
  });

  it('explain lines that end with a carriage return', async () => {
    await write('dos', 'a\r\nb\r\n');
    const args = { command: 'str_replace', path: 'dos', old_str: 'a\nb', new_str: 'c' };
    await expect(call(args)).rejects.toThrow(/lines end with \\r\\n/);
  });

  it.each([
    ['a\nb\n', 0, 'new', 'new\na\nb\n'],
    ['a\nb\n', 2, 'new\n', 'a\nb\nnew\n'],
    ['a\nb', 1, 'x\ny', 'a\nx\ny\nb'],
    ['', 0, 'only', 'only\n'],
  ])('insert into %j after line %i', async (before, insert_line, new_str, after) => {
    await write('list', before);
    await call({ command: 'insert', path: 'list', insert_line, new_str });
    expect(await read('list')).toBe(after);
  });

  it('refuse to insert after a line that the file does not have', async () => {
    await write('list', 'a\n');
    const args = { command: 'insert', path: 'list', insert_line: 3, new_str: 'x' };
    await expect(call(args)).rejects.toThrow(/from 0 to 1/);
  });

  it('are taken back one after the other, each in its own file', async () => {
    await write('one', '1\n');
    await write('two', '2\n');
    await call({ command: 'insert', path: 'one', insert_line: 1, new_str: 'a' });
    await call({ command: 'insert', path: './one', insert_line: 2, new_str: 'b' });
    await call({ command: 'insert', path: 'two', insert_line: 1, new_str: 'c' });
    await call({ command: 'undo_edit', path: `${sandbox.workdir}/one` });
    expect(await read('one')).toBe('1\na\n');
    await call({ command: 'undo_edit', path: 'one' });
    expect([await read('one'), await read('two')]).toEqual(['1\n', '2\nc\n']);
    await expect(call({ command: 'undo_edit', path: 'one' })).rejects.toThrow(/no edit/);
  });

  it('leave files that are binary or too large', async () => {
    await write('binary', Buffer.from([0x61, 0xff, 0x62]));
    await write('huge', 'a line\n'.repeat(400_000));
    const edit = { command: 'str_replace', old_str: 'a', new_str: 'b' };
    await expect(call({ ...edit, path: 'binary' })).rejects.toThrow(/not a text file in UTF-8/);
    await expect(call({ ...edit, path: 'huge' })).rejects.toMatchObject({ reason: 'too_large' });
  });

  it('do not follow links out of the sandbox', async () => {
    await shell('ln -s /etc/hostname link; ln -s /etc links');
    const edit = { command: 'str_replace', old_str: 'a', new_str: 'b' };
    for (const path of ['link', 'links/hostname', '../../../../etc/hostname', '/etc/hostname']) {
      await expect(call({ command: 'view', path })).rejects.toMatchObject({ reason: 'outside' });
      await expect(call({ ...edit, path })).rejects.toMatchObject({ reason: 'outside' });
      await expect(call({ command: 'create', path, file_text: 'x' })).rejects.toMatchObject({ reason: 'outside' });
    }
  });

  it.each([
    [{ command: 'create', path: 'x' }, /needs file_text/],
    [{ command: 'str_replace', path: 'x', new_str: '' }, /needs old_str/],
    [{ command: 'insert', path: 'x', new_str: '' }, /needs insert_line/],
    [{ command: 'insert', path: 'x', insert_line: 0 }, /needs new_str/],
    [{ command: 'remove', path: 'x' }, /wrong arguments: command/],
    [{ command: 'view' }, /wrong arguments: path/],
    [{ command: 'view', path: 'x', view_range: [1] }, /wrong arguments: view_range/],
  ])('refuse %j', async (args, message) => {
    await write('x', 'a\n');
    await expect(call(args)).rejects.toThrow(message);
  });
});
