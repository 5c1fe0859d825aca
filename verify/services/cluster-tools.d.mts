/** Where a tool is: installed by this program, else on the PATH, else null. */
export function findTool(name: string): string | null;
