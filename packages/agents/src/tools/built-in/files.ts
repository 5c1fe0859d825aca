import { fileLines, listingLines, replacedText, TOOL_DESCRIPTIONS } from '@floe-rl/sandbox';
import { z } from 'zod';
import { requireBox } from '../require-box.ts';
import { defineTool } from '../tool.ts';
import { defineToolset } from '../toolset.ts';

const line = z.int().min(1).nullish();

/** Tools that read, write, edit and list files of the sandbox. They have the same names and texts as the tools of floe's MCP server. */
export const filesToolset = defineToolset({
  name: 'files',
  description: 'read_file, write_file, edit_file and list_files in the sandbox',
  config: z.strictObject({}),
  scope: 'session',
  async open(_, context) {
    const box = requireBox('files', context.box);
    const readFile = defineTool({
      name: 'read_file',
      description: TOOL_DESCRIPTIONS.readFile,
      effect: 'environment',
      parameters: z.object({ path: z.string(), first_line: line, line_count: line }),
      async run({ path, first_line, line_count }, _, signal) {
        const range = { firstLine: first_line ?? undefined, lineCount: line_count ?? undefined };
        return fileLines(await box.readFile(path, range, signal));
      },
    });
    const writeFile = defineTool({
      name: 'write_file',
      description: TOOL_DESCRIPTIONS.writeFile,
      effect: 'environment',
      parameters: z.object({ path: z.string(), content: z.string() }),
      isEdit: () => true,
      async run({ path, content }, _, signal) {
        await box.writeFile(path, content, signal);
        return `wrote ${path}`;
      },
    });
    const editFile = defineTool({
      name: 'edit_file',
      description: TOOL_DESCRIPTIONS.editFile,
      effect: 'environment',
      parameters: z.object({
        path: z.string(),
        old_text: z.string(),
        new_text: z.string(),
        replace_all: z.boolean().nullish(),
      }),
      isEdit: () => true,
      async run({ path, old_text, new_text, replace_all }, _, signal) {
        const edit = { oldText: old_text, newText: new_text, replacesAll: replace_all === true };
        return replacedText(await box.editFile(path, edit, signal));
      },
    });
    const listFiles = defineTool({
      name: 'list_files',
      description: TOOL_DESCRIPTIONS.listFiles,
      effect: 'environment',
      parameters: z.object({ path: z.string().nullish() }),
      run: async ({ path }, _, signal) => listingLines(await box.list(path ?? '.', signal)),
    });
    return { tools: [readFile, writeFile, editFile, listFiles] };
  },
});
