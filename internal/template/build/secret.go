package build

import (
	"archive/tar"
	"bytes"
	"context"
	"maps"
	"path"
	"strconv"

	"github.com/cay-run/cay"
)

// shelf is where files of secrets lie while a step runs: a file system in the
// sandbox's memory that is no part of its root, so that no layer can have them.
const shelf = "/dev/shm/.cay-secrets"

// stepKey names a step and all before it. As with Docker, the name of a secret is
// a part of it, and the value is not.
func stepKey(before string, s cay.BuildStep) string {
	if len(s.Secrets) == 0 {
		return digest(before, s.Type, s.Args, s.FilesHash)
	}
	return digest(before, s.Type, s.Args, s.FilesHash, s.Secrets)
}

// showSecret lays a link to a secret at its target and writes the directories
// that it had to make.
const showSecret = `
from=$1 to=$2
chown -- "$3:$4" "$from"
chmod -- "$5" "$from"
if [ -e "$to" ] || [ -h "$to" ]; then echo "the secret cannot be at $to: something is there" >&2; exit 1; fi
made= dir=${to%/*}
while [ -n "$dir" ] && [ ! -d "$dir" ]; do made="$made$dir
"; dir=${dir%/*}; done
mkdir -p -- "${to%/*}/"
ln -s -- "$from" "$to"
printf %s "$made"`

// hideSecret removes what showSecret made, as far as the step left it so.
const hideSecret = `
[ "$(readlink -- "$2")" != "$1" ] || rm -f -- "$2"
printf %s "$3" | while IFS= read -r dir; do rmdir -- "$dir" 2>/dev/null || true; done`

// reveal puts secrets where a step looks for them. It returns the variables
// that the step gets, and what takes the secrets away again.
func (r *run) reveal(ctx context.Context, mounts []cay.SecretMount) (env map[string]string, hide func(context.Context) error, err error) {
	env = r.state.Env
	hide = func(context.Context) error { return nil }
	var files bytes.Buffer
	out, shown := tar.NewWriter(&files), []cay.SecretMount{}
	for _, m := range mounts {
		text, ok := r.spec.Secrets[m.ID]
		if !ok {
			continue
		}
		if m.Env != "" {
			if env = maps.Clone(env); env == nil {
				env = map[string]string{}
			}
			env[m.Env] = string(text)
		}
		if m.Target == "" {
			continue
		}
		h := &tar.Header{Name: strconv.Itoa(len(shown)), Typeflag: tar.TypeReg, Mode: 0o400, Size: int64(len(text))}
		if err := out.WriteHeader(h); err != nil {
			return nil, nil, err
		}
		if _, err := out.Write(text); err != nil {
			return nil, nil, err
		}
		shown = append(shown, m)
	}
	if len(shown) == 0 {
		return env, hide, out.Close()
	}
	if err := out.Close(); err != nil {
		return nil, nil, err
	}
	if _, err := r.box.shell(ctx, `rm -rf -- "$1"; mkdir -m 755 -- "$1"`, shelf); err != nil {
		return nil, nil, err
	}
	if err := r.box.unpack(ctx, "root", shelf, &files); err != nil {
		return nil, nil, err
	}
	hide, err = r.show(ctx, shown)
	return env, hide, err
}

// show links the files of the shelf, which are numbered, to their targets.
func (r *run) show(ctx context.Context, mounts []cay.SecretMount) (hide func(context.Context) error, err error) {
	made := make([]string, len(mounts))
	for i, m := range mounts {
		made[i], err = r.box.shell(ctx, showSecret, path.Join(shelf, strconv.Itoa(i)), m.Target,
			strconv.Itoa(m.UID), strconv.Itoa(m.GID), strconv.FormatUint(uint64(m.Mode&0o777), 8))
		if err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		for i := len(mounts) - 1; i >= 0; i-- {
			if _, err := r.box.shell(ctx, hideSecret, path.Join(shelf, strconv.Itoa(i)), mounts[i].Target, made[i]+"\n"); err != nil {
				return err
			}
		}
		_, err := r.box.shell(ctx, `rm -rf -- "$1"`, shelf)
		return err
	}, nil
}
