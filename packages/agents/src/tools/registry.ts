import { bashToolset } from './built-in/bash.ts';
import { codeSearchToolset } from './built-in/code-search.ts';
import { computerToolset } from './built-in/computer.ts';
import { environmentToolset } from './built-in/environment.ts';
import { filesToolset } from './built-in/files.ts';
import { finishTool } from './built-in/finish.ts';
import { ipythonToolset } from './built-in/ipython.ts';
import { mcpToolset } from './built-in/mcp.ts';
import { memoryToolset } from './built-in/memory.ts';
import { openPageToolset } from './built-in/open-page.ts';
import { searchToolset } from './built-in/search.ts';
import { skillsToolset } from './built-in/skills.ts';
import { strReplaceEditorToolset } from './built-in/str-replace-editor.ts';
import { thinkTool } from './built-in/think.ts';
import { type ToolsetDefinition, toolsetOf } from './toolset.ts';

/** Returns the toolsets of floe by their names. */
export function builtInToolsets(): ReadonlyMap<string, ToolsetDefinition> {
  const toolsets: readonly ToolsetDefinition[] = [
    bashToolset,
    codeSearchToolset,
    computerToolset,
    environmentToolset,
    filesToolset,
    ipythonToolset,
    mcpToolset,
    memoryToolset,
    openPageToolset,
    searchToolset,
    skillsToolset,
    strReplaceEditorToolset,
    toolsetOf(finishTool),
    toolsetOf(thinkTool),
  ];
  return new Map(toolsets.map((toolset) => [toolset.name, toolset]));
}
