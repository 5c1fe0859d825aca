/** Packages of the sandboxes' image: a shell, Perl, and the programs of the bombs. */
export const PACKAGES = ['base-files', 'bash', 'coreutils', 'dash', 'perl-base', 'util-linux'];
