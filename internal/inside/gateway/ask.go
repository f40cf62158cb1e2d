package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cay-run/cay/internal/guest"
)

// anyTool, in a list of tools, is each of the server's.
const anyTool = "*"

// askWithin bounds the wait for the host, which answers within a minute.
const askWithin = 70 * time.Second

// approve has a person asked about a call of a tool, where the configuration says
// so. It returns why the call may not be made, in words for the model.
func (v *supervised) approve(ctx context.Context, tool string, arguments json.RawMessage) (why string) {
	if !slices.Contains(v.Ask, tool) && !slices.Contains(v.Ask, anyTool) {
		return ""
	}
	body := visible(arguments)
	if len(body) > guest.MaxAskBody {
		return fmt.Sprintf("tool %s of server %s needs a person's approval, and these arguments are too long to be shown: at most %d bytes", tool, v.Name, guest.MaxAskBody)
	}
	if v.cfg.Ask == nil {
		return fmt.Sprintf("tool %s of server %s needs a person's approval, and this sandbox's host takes no questions", tool, v.Name)
	}
	answer, err := v.cfg.Ask(ctx, guest.Ask{
		Subject: fit("tool "+tool+" of "+v.Name, 500), Title: fit("Call "+tool+" of the server "+v.Name, guest.MaxAskTitle), Body: body,
	})
	switch {
	case err != nil:
		v.log.Warn("a person cannot be asked", "tool", tool, "err", err)
		return fmt.Sprintf("tool %s of server %s needs a person's approval, which cannot be asked for: the call was not made", tool, v.Name)
	case !answer.Yes:
		return fmt.Sprintf("tool %s of server %s needs a person's approval, and the call was not made: %s", tool, v.Name, answer.Why)
	}
	return ""
}

// visible writes the arguments of a call so that nothing in them is hidden:
// characters that are not printed are written as JSON escapes.
func visible(arguments json.RawMessage) string {
	var indented bytes.Buffer
	if json.Indent(&indented, arguments, "", "  ") != nil {
		indented.Reset()
		indented.Write(arguments)
	}
	var out strings.Builder
	for _, r := range indented.String() {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&out, "\\U%08x", r)
		default:
			fmt.Fprintf(&out, "\\u%04x", r)
		}
	}
	return out.String()
}

// fit cuts a name that a server chose.
func fit(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "")
}

// AskHost asks the sandbox's host to have a person asked.
func AskHost(ctx context.Context, q guest.Ask) (out guest.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	text, err := json.Marshal(q)
	if err != nil {
		return out, err
	}
	address := "http://" + net.JoinHostPort(guest.NameServer, strconv.Itoa(guest.HostPort)) + guest.AskPath
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(text))
	if err != nil {
		return out, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // not by a proxy of the environment
	resp, err := client.Do(r)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return out, err
	}
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("the host answered %d: %.300s", resp.StatusCode, said)
	}
	return out, json.Unmarshal(said, &out)
}
