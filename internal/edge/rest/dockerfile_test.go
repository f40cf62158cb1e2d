package rest_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestReadDockerfile(t *testing.T) {
	w := newWorld(t, "")
	read := func(body object) reply {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		return w.call("POST", "/cay/v1/dockerfiles", string(text))
	}
	got := want[object](t, read(object{"args": object{"V": "2"}, "dockerfile": `ARG V=1
FROM debian:12 AS tools
RUN echo "$V"
FROM tools
ENV A=1 B="two words"
WORKDIR /srv
USER user
RUN --mount=type=secret,id=token cat /run/secrets/token
COPY --from=tools /etc/hosts /srv/
COPY app/ /srv/app/
MAINTAINER ann
LABEL cay.docker=true
CMD ["python3", "app.py"]
`}), 200)
	stages := got["stages"].([]any)
	if len(stages) != 2 {
		t.Fatalf("%v", got)
	}
	first, last := stages[0].(object), stages[1].(object)
	if first["name"] != "tools" || first["fromImage"] != "debian:12" || first["fromStage"] != nil || last["fromStage"] != 0.0 || last["fromImage"] != nil ||
		first["docker"] != nil || last["docker"] != true ||
		!strings.Contains(fmt.Sprint(last["startCmd"]), "app.py") {
		t.Errorf("first %v, last %v", first, last)
	}
	var steps []string
	for _, s := range last["steps"].([]any) {
		s := s.(object)
		steps = append(steps, fmt.Sprint(s["line"], " ", s["type"], " ", s["args"], " ", s["needs"]))
	}
	for i, part := range []string{"0 USER [root] <nil>", "0 WORKDIR [/] <nil>", "5 ENV [A 1 B two words] <nil>", "6 WORKDIR [/srv] <nil>", "7 USER [user] <nil>", "8 RUN [", "9 COPY [/etc/hosts /srv/] stage", "10 COPY [app/ /srv/app/] files"} {
		if i >= len(steps) || !strings.HasPrefix(steps[i], part) {
			t.Errorf("step %d of %q, want %q", i, steps, part)
		}
	}
	if !strings.HasSuffix(steps[5], " secrets") {
		t.Errorf("a secret: %q", steps[5])
	}
	for text, says := range map[string]string{"": "dockerfile", "FROM a\nNONSENSE x": "line 2", "RUN x": "no build stage"} {
		wantError(t, read(object{"dockerfile": text}), 400, says)
	}
	wantError(t, read(object{"dockerfile": "FROM scratch"}), 501, "scratch")
	wantError(t, read(object{"dockerfile": "FROM a", "target": "none"}), 400, "none")
	wantError(t, read(object{"dockerfile": "FROM a\n#" + strings.Repeat("x", 1<<20)}), 413, "1 MiB")
}
