/** Something wrong in the documentation. `where` is a page with a line, or a page of the site. */
export type Finding = { readonly where: string; readonly problem: string };
