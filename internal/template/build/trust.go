package build

import (
	"context"
	"path"
	"strings"

	"github.com/cay-run/cay"
)

// anchors are the directories whose certificates a system is to trust.
var anchors = []string{
	"usr/local/share/ca-certificates/",
	"etc/pki/ca-trust/source/anchors/",
	"etc/ca-certificates/trust-source/anchors/",
	"usr/share/pki/trust/anchors/", "etc/pki/trust/anchors/",
}

// isAnchor reports whether a file is a certificate that a system is to trust.
func isAnchor(name string) bool {
	switch path.Ext(name) {
	case ".crt", ".pem", ".cer":
	default:
		return false
	}
	for _, dir := range anchors {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return false
}

// trust has the system trust the certificates that steps put where it looks for
// them: a COPY does not run what makes them known. It counts as a last step, so
// a build without such files, or one that was made before, pays nothing.
func (r *run) trust(ctx context.Context) error {
	if r.state.Layer == "" {
		return nil
	}
	key := digest("trust 1", trustAnchors, r.root, r.state.Layer)
	var known state
	if r.layers.Find(key, &known) {
		if _, err := r.layers.Load(known.Layer); err == nil {
			r.state.Layer = known.Layer
			return nil
		}
	}
	added, err := r.layers.Adds(r.state.Layer, isAnchor)
	if err != nil {
		return err
	}
	if added {
		if err := r.runTrust(ctx); err != nil {
			return err
		}
	}
	return r.layers.Remember(key, state{Layer: r.state.Layer})
}

func (r *run) runTrust(ctx context.Context) error {
	r.say(finalizeStep, "[finalize] trusting the certificates that steps added")
	r.leaveUnfit(cay.BuildStep{}) // a volume may lie over what it writes
	if r.box == nil {
		if err := r.boot(ctx, nil); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.cfg.Times.Step,
		cay.Errorf(cay.Unavailable, "trusting the certificates took longer than %s", r.cfg.Times.Step))
	defer cancel()
	err := r.box.run(ctx, command{
		user: "root", dir: "/", args: []string{"/bin/sh", "-c", trustAnchors},
		env: map[string]string{"PATH": defaultPath},
		line: func(stream, line string) {
			r.log(cay.BuildLog{Level: cay.LogDebug, Step: finalizeStep, Message: "[trust] [" + stream + "]: " + line})
		},
	})
	if err == nil {
		err = r.keep(ctx, finalizeStep)
	}
	if late := overtime(ctx, err); err != nil && late != nil {
		return late
	}
	return r.box.explain(err)
}

// trustAnchors has each family's tool read the anchors. The bundle that programs
// read keeps what it had (the host's own authorities are in no directory), but
// for the part that the agent added for one sandbox, and gets the anchors where
// the tool does not write it.
const trustAnchors = `
have() { command -v "$1" >/dev/null 2>&1; }
bundle=/etc/ssl/certs/ca-certificates.crt
work=$(mktemp -d) || exit 1
cp "$bundle" $work/old 2>/dev/null || : >$work/old
if have update-ca-certificates; then update-ca-certificates
elif have update-ca-trust; then update-ca-trust
elif have trust; then trust extract-compat
fi || echo "the system's own tool failed" >&2
[ -e "$bundle" ] || cp $work/old "$bundle"
set --
for dir in /usr/local/share/ca-certificates /etc/pki/ca-trust/source/anchors /etc/ca-certificates/trust-source/anchors /usr/share/pki/trust/anchors /etc/pki/trust/anchors; do
	[ ! -d $dir ] || set -- "$@" $(find $dir -type f \( -name '*.crt' -o -name '*.pem' -o -name '*.cer' \) ! -name '*[[:space:]]*' | sort)
done
awk '
FNR == 1 { file++; inside = 0; ours = 0 }
/^# cay: certificates of this sandbox begin/ { ours = 1 }
/^# cay: certificates of this sandbox end/ { ours = 0; next }
ours { next }
{ sub(/\r$/, "") }
file == 1 { print }
/-----BEGIN CERTIFICATE-----/ { block = ""; inside = 1 }
inside { block = block $0 "\n" }
/-----END CERTIFICATE-----/ {
	if (inside && !(block in seen)) { seen[block] = 1; if (file > 1) printf "%s", block }
	inside = 0
}' "$bundle" $work/old "$@" >$work/new && cat $work/new >"$bundle" && chmod 644 "$bundle" || echo "the bundle is not written" >&2
rm -rf $work
`
