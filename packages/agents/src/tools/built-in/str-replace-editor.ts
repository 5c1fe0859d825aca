import { posix } from 'node:path';
import { z } from 'zod';
import { requireBox } from '../require-box.ts';
import { type EditCommand, TextEditor } from '../text-editor.ts';
import { defineTool, ToolError } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

const COMMANDS = ['view', 'create', 'str_replace', 'insert', 'undo_edit'] as const;

const parameters = z.object({
  command: z.enum(COMMANDS),
  path: z.string().min(1).describe('file or directory; relative paths are below the working directory'),
  file_text: z.string().nullish().describe('content of the new file, for `create`'),
  view_range: z
    .array(z.int())
    .min(2)
    .max(2)
    .nullish()
    .describe('first and last line, for `view`; lines are numbered from 1, and a last line of -1 is the end'),
  old_str: z.string().nullish().describe('text that occurs exactly once, for `str_replace`'),
  new_str: z.string().nullish().describe('new text, for `str_replace` and `insert`'),
  insert_line: z.int().nullish().describe('line after which `insert` inserts; 0 for the start of the file'),
});

const DESCRIPTION = [
  'Views and edits text files.',
  '`view` shows a file with line numbers, or the entries of a directory two levels deep.',
  '`create` writes a whole file.',
  '`str_replace` replaces old_str, which must occur exactly once, with all its white space.',
  '`insert` inserts new_str after a line.',
  '`undo_edit` takes back the last edit of a file by this tool.',
].join(' ');

/** An editor for text files of the sandbox that remembers its edits. */
export const strReplaceEditorToolset = defineToolset({
  name: 'str_replace_editor',
  description: 'an editor for files of the sandbox: view, create, str_replace, insert, undo_edit',
  config: z.strictObject({}),
  scope: 'session',
  async open(_, context) {
    const box = requireBox('str_replace_editor', context.box);
    const editor = new TextEditor(box);
    const tool = defineTool({
      name: 'str_replace_editor',
      description: DESCRIPTION,
      effect: 'environment',
      parameters,
      isEdit: ({ command }) => command !== 'view',
      run: (args, _, signal) => {
        const path = posix.resolve(box.workdir, args.path);
        if (args.command === 'view') return editor.view(path, rangeOf(args), signal);
        return editor.edit(path, commandOf(args), signal);
      },
    });
    return { tools: [tool] };
  },
});

type Args = z.output<typeof parameters>;

function rangeOf({ view_range }: Args): readonly [number, number] | null {
  const [first, last] = view_range ?? [];
  return first === undefined || last === undefined ? null : [first, last];
}

/** Returns the edit that the arguments request. Throws a {@link ToolError} when one is missing. */
function commandOf({ command, file_text, old_str, new_str, insert_line }: Args): EditCommand {
  switch (command) {
    case 'create':
      return { command, text: required(command, 'file_text', file_text) };
    case 'str_replace':
      return { command, oldText: required(command, 'old_str', old_str), newText: new_str ?? '' };
    case 'insert': {
      const line = required(command, 'insert_line', insert_line);
      return { command, line, text: required(command, 'new_str', new_str) };
    }
    default:
      return { command: 'undo_edit' };
  }
}

function required<T>(command: string, name: string, value: T | null | undefined): T {
  if (value === null || value === undefined) throw new ToolError('failed', `\`${command}\` needs ${name}`);
  return value;
}
