/**
 * Returns the section of the changelog on a release, without its title. `tag` is the tag of the release, such as `v0.2.0`. Throws an Error
 * when the tag does not name the version, when the section is missing, has no date or is empty, and when the changelog has entries under
 * Unreleased.
 */
export function releaseNotes(changelog: string, version: string, tag: string): string {
  if (tag !== `v${version}`) throw new Error(`the tag ${tag} is not that of the version ${version}`);
  const sections = changelog.split(/^## /m).slice(1);
  const textOf = (title: string): string => title.slice(title.indexOf('\n') + 1).trim();
  const unreleased = sections.find((section) => section.startsWith('Unreleased'));
  if (unreleased !== undefined && textOf(unreleased) !== '') {
    throw new Error(`CHANGELOG.md has entries under Unreleased; give the section the title "${version} - YYYY-MM-DD"`);
  }
  const section = sections.find((one) => one.startsWith(`${version} `));
  if (section === undefined) throw new Error(`CHANGELOG.md has no section for ${version}`);
  if (!/^\S+ - \d{4}-\d{2}-\d{2}\n/.test(section)) {
    throw new Error(`the section for ${version} in CHANGELOG.md needs a title of the form "${version} - YYYY-MM-DD"`);
  }
  const notes = textOf(section);
  if (notes === '') throw new Error(`the section for ${version} in CHANGELOG.md is empty`);
  return notes;
}
