package main

import (
	"os"
	"strings"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/template/dockerfile"
)

// secretMost is the size of a secret, as with Docker.
const secretMost = 500 << 10

// buildSecrets are the values of --secret, by name.
type buildSecrets map[string][]byte

// readSecrets reads what --secret names: id=NAME with src=PATH, with
// env=VARIABLE, or alone, which is the variable NAME if there is one and the
// file NAME if not.
func readSecrets(flags []string) (buildSecrets, error) {
	out := buildSecrets{}
	for _, flag := range flags {
		fields := map[string]string{}
		for part := range strings.SplitSeq(flag, ",") {
			name, value, ok := strings.Cut(part, "=")
			switch name {
			case "source":
				name = "src"
			case "id", "src", "env", "type":
			default:
				ok = false
			}
			if !ok {
				return nil, cay.Errorf(cay.Invalid, "--secret: %.80q is not understood", name).WithHint("--secret id=NAME,src=PATH or id=NAME,env=VARIABLE")
			}
			fields[name] = value
		}
		id := fields["id"]
		if id == "" {
			return nil, cay.Errorf(cay.Invalid, "--secret: id is missing").WithHint("--secret id=NAME,src=PATH or id=NAME,env=VARIABLE")
		}
		value, err := readSecret(id, fields)
		if err != nil {
			return nil, err
		}
		out[id] = value
	}
	return out, nil
}

func readSecret(id string, fields map[string]string) ([]byte, error) {
	src, env := fields["src"], fields["env"]
	if fields["type"] == "env" && env == "" {
		src, env = "", or(src, id)
	}
	if src == "" && env == "" && fields["type"] != "file" {
		if value, ok := os.LookupEnv(id); ok {
			return []byte(value), nil
		}
	}
	if env != "" {
		value, ok := os.LookupEnv(env)
		if !ok {
			return nil, cay.Errorf(cay.NotFound, "--secret %s: the variable %s is not set", id, env)
		}
		return []byte(value), nil
	}
	value, err := os.ReadFile(or(src, id))
	if err != nil {
		return nil, cay.Wrap(cay.NotFound, err, "--secret %s: cannot read %s", id, or(src, id))
	}
	if len(value) > secretMost {
		return nil, cay.Errorf(cay.Invalid, "--secret %s: must have at most %d KB", id, secretMost>>10)
	}
	return value, nil
}

// mounts puts what a RUN asks for into the server's words.
func (b buildSecrets) mounts(s dockerfile.Step) ([]client.SecretMount, error) {
	var out []client.SecretMount
	for _, m := range s.Run.Secrets {
		if _, ok := b[m.ID]; !ok && m.Required {
			return nil, cay.Errorf(cay.Invalid, "Dockerfile line %d: the secret %s is required", s.Line, m.ID).
				WithHint("give it: --secret id=%s,src=PATH", m.ID)
		}
		out = append(out, client.SecretMount{ID: m.ID, Target: m.Target, Env: m.Env, Mode: m.Mode, UID: m.UID, GID: m.GID})
	}
	return out, nil
}

// of returns those that some steps see: no others leave this machine.
func (b buildSecrets) of(steps []client.BuildStep) map[string][]byte {
	out := map[string][]byte{}
	for _, s := range steps {
		for _, m := range s.Secrets {
			if value, ok := b[m.ID]; ok {
				out[m.ID] = value
			}
		}
	}
	return out
}
