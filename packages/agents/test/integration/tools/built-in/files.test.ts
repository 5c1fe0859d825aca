import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { never } from '../../../../../sandbox/test/backends/workbench.ts';
import { filesToolset } from '../../../../src/tools/built-in/files.ts';
import { TestBox } from '../../../tools/open-box.ts';

let sandbox: TestBox;
let opened: Awaited<ReturnType<TestBox['use']>>;

beforeAll(async () => {
  sandbox = await TestBox.open();
  opened = await sandbox.use(filesToolset);
});
afterAll(() => sandbox.close());

const call = async (name: string, args: Record<string, unknown>) => (await opened.call(name, args)).content;

describe('the tools for files', () => {
  it('write, edit, read and list files', async () => {
    expect(await call('write_file', { path: 'files/a', content: '1\n2\n3\n' })).toBe('wrote files/a');
    expect(await call('edit_file', { path: 'files/a', old_text: '2', new_text: 'two' })).toBe('replaced 1 occurrence');
    expect(await call('read_file', { path: 'files/a' })).toBe('1\ntwo\n3\n');
    expect(await call('read_file', { path: 'files/a', first_line: 2, line_count: 1 })).toBe(
      'two\n\n[continue with first_line 3]',
    );
    expect(await call('list_files', { path: 'files' })).toBe('a\t8');
    expect(await call('list_files', {})).toContain('files/\tdirectory');
  });

  it('replace each occurrence only when that is requested', async () => {
    await call('write_file', { path: 'twice', content: 'a a' });
    const edit = { path: 'twice', old_text: 'a', new_text: 'b' };
    await expect(call('edit_file', edit)).rejects.toMatchObject({ reason: 'several_matches' });
    expect(await call('edit_file', { ...edit, replace_all: true })).toBe('replaced 2 occurrences');
  });

  it('refuse what cannot be done, with its reason', async () => {
    await sandbox.box.shell().run('ln -s /etc/hostname link', { timeoutMs: 60_000 }, never);
    await expect(call('read_file', { path: 'absent' })).rejects.toMatchObject({ reason: 'not_found' });
    await expect(call('read_file', { path: '.' })).rejects.toMatchObject({ reason: 'not_a_file' });
    await expect(call('read_file', { path: 'link' })).rejects.toMatchObject({ reason: 'outside' });
    await expect(call('write_file', { path: '/etc/x', content: '' })).rejects.toMatchObject({ reason: 'outside' });
    const large = { path: 'large', content: 'x'.repeat(17 * 1024 * 1024) };
    await expect(call('write_file', large)).rejects.toMatchObject({ reason: 'too_large' });
  });

  it('refuse missing and wrong arguments', async () => {
    await expect(call('read_file', {})).rejects.toThrow(/wrong arguments: path/);
    await expect(call('read_file', { path: 'x', first_line: 0 })).rejects.toThrow(/wrong arguments: first_line/);
    await expect(call('edit_file', { path: 'x', old_text: 'a' })).rejects.toThrow(/wrong arguments: new_text/);
  });

  it('replace bytes that are not UTF-8 when they are read', async () => {
    await sandbox.box.writeFile('binary', Buffer.from([0x61, 0xff]), never);
    expect(await call('read_file', { path: 'binary' })).toBe('a\uFFFD');
  });
});
