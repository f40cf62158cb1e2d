package build

import (
	"context"
	"errors"
	"maps"
	"path"
	"regexp"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/cay-run/cay"
)

// execute carries one step out and reports whether it may have changed files.
func (r *run) execute(ctx context.Context, i int, s cay.BuildStep) (changed bool, err error) {
	switch s.Type {
	case "RUN":
		return true, r.runStep(ctx, i, s)
	case "COPY":
		return true, r.copyStep(ctx, s)
	case "ENV":
		return r.envStep(ctx, s)
	case "WORKDIR":
		return r.dirStep(ctx, s)
	case "USER":
		return r.userStep(ctx, s)
	}
	return false, cay.Errorf(cay.Invalid, "unknown step %q", s.Type)
}

// runStep runs a line of the user's shell.
func (r *run) runStep(ctx context.Context, i int, s cay.BuildStep) error {
	user := r.state.User
	if len(s.Args) > 1 && s.Args[1] != "" {
		user = s.Args[1]
	}
	env, hide, err := r.reveal(ctx, s.Secrets)
	if err != nil {
		return stepError("RUN", err)
	}
	var tail []string
	err = r.box.run(ctx, command{
		user: user, dir: r.state.Dir, env: env,
		args: []string{"/bin/bash", "-l", "-c", s.Args[0]},
		line: func(stream, line string) {
			r.say(strconv.Itoa(i+1), "[builder %d/%d] [%s]: %s", i+1, len(r.spec.Steps), stream, line)
			tail = lastLines(tail, line)
		},
	})
	if err != nil {
		return commandError(s.Args[0], err, tail) // the sandbox goes, with all in it
	}
	return hide(ctx)
}

// lastLines adds a line to the last ones that an error quotes.
func lastLines(tail []string, line string) []string {
	if tail = append(tail, line); len(tail) > 5 {
		tail = tail[1:]
	}
	return tail
}

// commandError says that a command of the user's failed, and how.
func commandError(cmd string, err error, tail []string) error {
	var failed *exit
	var refused *connect.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed):
		text := "failed to run command '" + cmd + "': " + failed.Status
		if len(tail) > 0 {
			text += "\n" + strings.Join(tail, "\n")
		}
		return cay.Errorf(cay.Invalid, "%.4000s", text)
	case errors.As(err, &refused) && (refused.Code() == connect.CodeUnauthenticated || refused.Code() == connect.CodeInvalidArgument):
		return cay.Wrap(cay.Invalid, err, "failed to run command '%.2000s': command failed: %s", cmd, refused)
	}
	return err
}

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// pathProfile has login shells keep a PATH that was set by ENV: Debian's
// /etc/profile sets its own.
const pathProfile = `
mkdir -p /etc/profile.d
printf "export PATH='%s'\n" "$(printf %s "$1" | sed "s/'/'\\\\''/g")" > /etc/profile.d/zz-cay-path.sh
`

// newEnv is the environment after an ENV.
func (r *run) newEnv(s cay.BuildStep) (map[string]string, error) {
	env := maps.Clone(r.state.Env)
	if env == nil {
		env = map[string]string{}
	}
	for i := 0; i+1 < len(s.Args); i += 2 {
		if !envName.MatchString(s.Args[i]) {
			return nil, cay.Errorf(cay.Invalid, "ENV: %.80q is no name for a variable", s.Args[i])
		}
		env[s.Args[i]] = expand(s.Args[i+1], r.lookup) // as all were before the step
	}
	return env, nil
}

func (r *run) envStep(ctx context.Context, s cay.BuildStep) (changed bool, err error) {
	env, err := r.newEnv(s)
	if err != nil {
		return false, err
	}
	path := r.state.Env["PATH"]
	r.state.Env = env
	if env["PATH"] == path {
		return false, nil
	}
	_, err = r.box.shell(ctx, pathProfile, env["PATH"])
	return true, err
}

// defaultPath is the PATH where an image sets none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookup finds a variable of the build.
func (r *run) lookup(name string) (string, bool) {
	value, ok := r.state.Env[name]
	if !ok && name == "PATH" {
		return defaultPath, true
	}
	return value, ok
}

const makeDir = `[ -d "$1" ] && exit 0
mkdir -p -- "$1"
chown -- "$2:" "$1" 2>/dev/null || chown -- "$2" "$1"
echo made`

// newDir is the directory that a WORKDIR names.
func (r *run) newDir(s cay.BuildStep) string {
	dir := expand(s.Args[0], r.lookup)
	if !path.IsAbs(dir) {
		dir = path.Join("/", r.state.Dir, dir)
	}
	return path.Clean(dir)
}

func (r *run) dirStep(ctx context.Context, s cay.BuildStep) (changed bool, err error) {
	dir := r.newDir(s)
	out, err := r.box.shell(ctx, makeDir, dir, r.state.User)
	if err != nil {
		return false, stepError("WORKDIR "+dir, err)
	}
	r.state.Dir = dir
	return out == "made", nil
}

// makeUser finds an account by name or number and makes one that lacks. The
// last line it writes is the account's name.
const makeUser = `
case "$1" in
*[!0-9]*) ;;
*) name=$(awk -F: -v id="$1" '$3 == id { print $1; exit }' /etc/passwd)
   [ -n "$name" ] || { echo "there is no user with the number $1" >&2; exit 1; }
   echo "$name"; exit 0 ;;
esac
if ! id -u -- "$1" >/dev/null 2>&1; then
  if command -v useradd >/dev/null; then useradd --create-home --shell /bin/bash -- "$1"
  else adduser -D -- "$1"; fi
  echo made
fi
echo "$1"`

// newUser is the account that a USER names, by name or number.
func (r *run) newUser(s cay.BuildStep) string {
	name, _, _ := strings.Cut(expand(s.Args[0], r.lookup), ":")
	return name
}

func (r *run) userStep(ctx context.Context, s cay.BuildStep) (changed bool, err error) {
	name := r.newUser(s)
	if name == "" {
		return false, cay.Errorf(cay.Invalid, "USER needs a name")
	}
	out, err := r.box.shell(ctx, makeUser, name)
	if err != nil {
		return false, stepError("USER "+name, err)
	}
	made, name, ok := strings.Cut(out, "\n")
	if !ok {
		made, name = "", made
	}
	r.state.User = name
	return made != "", nil
}

// stepError says which instruction failed.
func stepError(what string, err error) error {
	var ours *cay.Error
	if !errors.As(err, &ours) {
		return err
	}
	out := *ours
	out.Msg = "failed to run " + what + ": " + ours.Msg
	return &out
}

// expand replaces $NAME, ${NAME}, ${NAME:-word} and ${NAME:+word}, as a
// Dockerfile has them. A variable that is not set is empty; \$ is a dollar sign.
func expand(s string, lookup func(string) (string, bool)) string {
	var out strings.Builder
	for i := 0; i < len(s); {
		switch {
		case s[i] == '\\' && i+1 < len(s) && s[i+1] == '$':
			out.WriteByte('$')
			i += 2
		case s[i] != '$' || i+1 == len(s):
			out.WriteByte(s[i])
			i++
		case s[i+1] == '{':
			end := closing(s, i+2)
			if end < 0 {
				out.WriteString(s[i:])
				return out.String()
			}
			out.WriteString(braced(s[i+2:end], lookup))
			i = end + 1
		default:
			end := i + 1
			for end < len(s) && (s[end] == '_' || alnum(s[end])) && !(end == i+1 && s[end] <= '9' && s[end] >= '0') {
				end++
			}
			if end == i+1 {
				out.WriteByte('$')
			} else {
				value, _ := lookup(s[i+1 : end])
				out.WriteString(value)
			}
			i = end
		}
	}
	return out.String()
}

func alnum(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// closing finds the brace that closes one before from.
func closing(s string, from int) int {
	depth := 1
	for i := from; i < len(s); i++ {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

func braced(s string, lookup func(string) (string, bool)) string {
	if name, word, ok := strings.Cut(s, ":-"); ok {
		if value, _ := lookup(name); value != "" {
			return value
		}
		return expand(word, lookup)
	}
	if name, word, ok := strings.Cut(s, ":+"); ok {
		if value, _ := lookup(name); value != "" {
			return expand(word, lookup)
		}
		return ""
	}
	value, _ := lookup(s)
	return value
}
