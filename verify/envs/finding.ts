/** One line of the table: what was checked, whether it holds, and figures or what is wrong. */
export type Finding = { readonly what: string; readonly isPassed: boolean; readonly detail: string };
