package dockerfile

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cay-run/cay"
)

// show writes a plan on lines, so that a test can say what it wants.
func show(p Plan) string {
	var out strings.Builder
	for i, s := range p.Stages {
		from := s.From.Image
		if s.From.Stage >= 0 {
			from = fmt.Sprint(s.From.Stage)
		}
		fmt.Fprintf(&out, "%d %s from %s\n", i, s.Name, from)
		for _, step := range s.Steps {
			out.WriteString("  " + showStep(step) + "\n")
		}
		if s.Start != "" {
			fmt.Fprintf(&out, "  start %s\n", s.Start)
		}
		if s.Ready != "" {
			fmt.Fprintf(&out, "  ready %s\n", s.Ready)
		}
		if s.Docker {
			out.WriteString("  with Docker\n")
		}
	}
	return out.String()
}

func showStep(s Step) string {
	switch {
	case s.Run != nil:
		text := "run " + strings.ReplaceAll(s.Run.Command, "\n", "⏎")
		for _, x := range s.Run.Secrets {
			text += fmt.Sprintf(" secret(%s %s %s %v)", x.ID, x.Target, x.Env, x.Required)
		}
		return text
	case s.Copy != nil:
		c := s.Copy
		text := fmt.Sprintf("copy %s → %s", strings.Join(c.Sources, ","), c.Dest)
		for _, x := range c.Contents {
			text += fmt.Sprintf(" content(%s=%q)", x.Name, x.Data)
		}
		if c.Stage >= 0 {
			text += fmt.Sprintf(" stage=%d", c.Stage)
		}
		if c.Owner != "" {
			text += " owner=" + c.Owner
		}
		if c.Mode != "" {
			text += " mode=" + c.Mode
		}
		if c.Add {
			text += " add"
		}
		return text
	case s.Env != nil:
		text := "env"
		for _, kv := range s.Env {
			text += " " + kv.Name + "=" + kv.Value
		}
		return text
	case s.User != "":
		return "user " + s.User
	}
	return "dir " + s.Workdir
}

func TestParse(t *testing.T) {
	tests := []struct {
		name, text string
		opts       Options
		want       string
	}{
		{"one stage", `
FROM debian:12
RUN apt-get update && \
    apt-get install -y curl
WORKDIR /app
WORKDIR src
COPY a.txt b.txt ./
ENV A=1 B="two words"
USER bob
CMD ["python", "-m", "http.server"]
`, Options{}, `
0 0 from debian:12
  user root
  dir /
  run apt-get update &&     apt-get install -y curl
  dir /app
  dir /app/src
  copy a.txt,b.txt → ./
  env A=1 B=two words
  user bob
  start python -m http.server
`},
		{"a sandbox's user at the end", "FROM x\nRUN true", Options{}, `
0 0 from x
  user root
  dir /
  run true
  user user
  dir /home/user
`},
		{"only the stages that the target needs", `
FROM go AS build
RUN make
FROM node AS unused
RUN npm i
FROM debian AS mid
COPY --from=build --chown=1:2 --chmod=755 /out /bin/
FROM mid
COPY --from=nginx:1 /etc/nginx /etc/
COPY --from=0 /more /
USER u
WORKDIR /w
`, Options{}, `
0 build from go
  user root
  dir /
  run make
  user user
  dir /home/user
1 mid from debian
  user root
  dir /
  copy /out → /bin/ stage=0 owner=1:2 mode=755
  user user
  dir /home/user
2 nginx:1 from nginx:1
3 3 from 1
  user root
  dir /
  copy /etc/nginx → /etc/ stage=2
  copy /more → / stage=0
  user u
  dir /w
`},
		{"a target", "FROM a AS one\nUSER x\nWORKDIR /\nFROM b", Options{Target: "ONE"}, `
0 one from a
  user root
  dir /
  user x
  dir /
`},
		{"arguments", `
ARG TAG=1
ARG OTHER
FROM x:$TAG${OTHER:+-$OTHER}
ARG TAG
ARG NAME=none
ARG TARGETARCH
RUN echo $NAME
ENV NAME=env
RUN echo $NAME
WORKDIR /$TAG
USER u
`, Options{Args: map[string]string{"NAME": "it's", "OTHER": "slim", "http_proxy": "p"}}, `
0 0 from x:1-slim
  user root
  dir /
  run export NAME='it'\''s'⏎export TAG=1⏎export TARGETARCH=` + runtime.GOARCH + `⏎export http_proxy=p⏎echo $NAME
  env NAME=env
  run export TAG=1⏎export TARGETARCH=` + runtime.GOARCH + `⏎export http_proxy=p⏎echo $NAME
  dir /1
  user u
`},
		{"what only the image knows", "FROM x\nENV PATH=/opt/bin:$PATH X=1\nENV Y=$X/$PATH\nWORKDIR /$X\nUSER u", Options{}, `
0 0 from x
  user root
  dir /
  env PATH=/opt/bin:$PATH X=1
  env Y=1/$PATH
  dir /1
  user u
`},
		{"here-documents", `
FROM x
RUN <<EOF
echo one
echo two
EOF
RUN python3 <<'PY' > /out
print("$x")
PY
RUN <<EOF
#!/usr/bin/env node
console.log(1)
EOF
ARG WHO=me
COPY <<EOF /etc/who
hello "$WHO"
EOF
USER u
WORKDIR /
`, Options{}, `
0 0 from x
  user root
  dir /
  run echo one⏎echo two⏎
  run python3 <<'PY' > /out⏎print("$x")⏎PY⏎
  run cat >/tmp/.cay-heredoc <<'CAY-HEREDOC-END'⏎#!/usr/bin/env node⏎console.log(1)⏎CAY-HEREDOC-END⏎chmod 700 /tmp/.cay-heredoc && /tmp/.cay-heredoc; s=$?; rm -f /tmp/.cay-heredoc; exit $s
  copy  → /etc/who content(EOF="hello \"me\"\n")
  user u
  dir /
`},
		{"shells and forms", `
FROM x
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN a | b
RUN ["cat", "a b"]
ENTRYPOINT ["/entry.sh"]
CMD ["serve", "it"]
HEALTHCHECK --interval=5s CMD curl -f localhost || exit 1
USER u
WORKDIR /
`, Options{}, `
0 0 from x
  user root
  dir /
  run /bin/bash -o pipefail -c 'a | b'
  run cat 'a b'
  user u
  dir /
  start /entry.sh serve it
  ready curl -f localhost || exit 1
`},
		{"a shell's start line", "FROM x\nCMD echo hi && sleep 1\nHEALTHCHECK NONE\nUSER u\nWORKDIR /", Options{}, `
0 0 from x
  user root
  dir /
  user u
  dir /
  start echo hi && sleep 1
`},
		{"what a stage hands on", `
FROM x AS base
ENV A=1
SHELL ["/bin/ash", "-c"]
ENTRYPOINT ["/run"]
CMD ["one"]
USER app
WORKDIR /srv
ONBUILD RUN touch $A
FROM base
CMD ["two"]
RUN echo $A
`, Options{}, `
0 base from x
  user root
  dir /
  env A=1
  user app
  dir /srv
  start /run one
1 1 from 0
  user app
  dir /srv
  run /bin/ash -c 'touch $A'
  run /bin/ash -c 'echo $A'
  start /run two
`},
		{"the label of Docker, handed on and taken back", `
FROM x AS base
LABEL a=b cay.docker="true"
USER u
WORKDIR /
FROM base AS same
FROM base
LABEL cay.docker=false
COPY --from=same a /
`, Options{}, `
0 base from x
  user root
  dir /
  user u
  dir /
  with Docker
1 same from 0
  user u
  dir /
  with Docker
2 2 from 0
  user u
  dir /
  copy a → / stage=1
`},
		{"triggers of an image", "FROM x\nUSER u\nWORKDIR /", Options{OnBuild: func(image string) ([]string, error) {
			return []string{"COPY . /" + image, "RUN make"}, nil
		}}, `
0 0 from x
  user root
  dir /
  copy . → /x
  run make
  user u
  dir /
`},
		{"secrets", `
FROM x
RUN --mount=type=secret,id=a --mount=type=secret,id=b,target=/b,required --mount=type=secret,id=c,env=TOKEN --mount=type=cache,target=/c cmd
USER u
WORKDIR /
`, Options{}, `
0 0 from x
  user root
  dir /
  run cmd secret(a /run/secrets/a  false) secret(b /b  true) secret(c  TOKEN false)
  user u
  dir /
`},
		{"add", "FROM x\nADD a.tar.gz https://example.com/f /dst/\nUSER u\nWORKDIR /", Options{}, `
0 0 from x
  user root
  dir /
  copy a.tar.gz,https://example.com/f → /dst/ add
  user u
  dir /
`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, err := Parse([]byte(test.text), test.opts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimPrefix(test.want, "\n"), show(p)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		opts Options
		kind cay.Kind
		says string
	}{
		"nothing":                {"", Options{}, cay.Invalid, "no instructions"},
		"an unknown instruction": {"FROM x\nRUNN y", Options{}, cay.Invalid, "line 2"},
		"nothing after FROM":     {"RUN x", Options{}, cay.Invalid, ""},
		"no source":              {"FROM x\nCOPY a", Options{}, cay.Invalid, "line 2"},
		"an empty variable":      {"ARG V\nFROM $V", Options{}, cay.Invalid, "line 2"},
		"an unknown target":      {"FROM x", Options{Target: "y"}, cay.Invalid, `"y"`},
		"scratch":                {"FROM scratch", Options{}, cay.Unsupported, "line 1"},
		"another machine":        {"FROM --platform=linux/s390x x", Options{}, cay.Unsupported, "s390x"},
		"an insecure step":       {"FROM x\nRUN --security=insecure y", Options{}, cay.Unsupported, "line 2"},
		"a bind mount":           {"FROM x\nRUN --mount=type=bind,target=/x y", Options{}, cay.Unsupported, "line 2"},
		"many files to one name": {"FROM x\nCOPY a b c", Options{}, cay.Invalid, "line 2"},
		"a bad modifier":         {"FROM x\nWORKDIR /${B", Options{}, cay.Invalid, "line 2"},
		"a git repository":       {"FROM x\nADD https://example.com/r.git /r", Options{}, cay.Unsupported, "line 2"},
		"a label of Docker":      {"FROM x\nLABEL cay.docker=perhaps", Options{}, cay.Invalid, "line 2"},
		"too much":               {strings.Repeat("#", Most+1), Options{}, cay.Invalid, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(test.text), test.opts)
			if cay.KindOf(err) != test.kind || !strings.Contains(fmt.Sprint(err), test.says) {
				t.Errorf("got %v, want %s with %q", err, test.kind, test.says)
			}
		})
	}
}

// No Dockerfile makes the parser panic, and what it accepts is whole.
func FuzzParse(f *testing.F) {
	f.Add("FROM x AS y\nARG A=${B:-c}\nRUN <<EOF\na\nEOF\nCOPY --from=y <<E /f\nE")
	f.Add("# escape=`\nFROM x\nONBUILD RUN y\nFROM 0\nHEALTHCHECK CMD [\"a\"]\nRUN --mount=type=secret,id=a,env=B c")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse([]byte(text), Options{Args: map[string]string{"A": "1"}})
		if err != nil {
			return
		}
		for i, s := range p.Stages {
			if s.From.Stage >= i || (s.From.Image == "") != (s.From.Stage >= 0) {
				t.Fatalf("stage %d begins with %+v", i, s.From)
			}
			for _, step := range s.Steps {
				if step.Copy != nil && step.Copy.Stage >= i {
					t.Fatalf("stage %d copies of stage %d", i, step.Copy.Stage)
				}
			}
		}
	})
}
