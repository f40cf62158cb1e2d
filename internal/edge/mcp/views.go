package mcp

import (
	"context"
	"net/url"
	"strconv"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/client"
)

type previewIn struct {
	Port int `json:"port" jsonschema:"the port that a server inside listens on"`
	target
}

type previewOut struct {
	Sandbox string `json:"sandbox_id"`
	URL     string `json:"url"`
	Header  string `json:"header,omitempty"`
}

type screenOut struct {
	Sandbox string `json:"sandbox_id"`
}

func (f *Face) addViews(s *sdk.Server) {
	add(f, s, tool{"preview_link", "Link to a port", "Returns the URL at which a person or a program reaches a server that listens on a port of a sandbox.", reads}, previewLink)
	add(f, s, tool{"screenshot", "Look at the screen", "Returns an image of a sandbox's screen. Its template must have one, as desktop does.", reads}, screenshot)
}

// portURL is where clients reach a port of a sandbox.
func (c *call) portURL(id string, port int) string {
	scheme := "https"
	if u, err := url.Parse(c.face.cfg.URL); err == nil {
		scheme = u.Scheme
	}
	return scheme + "://" + strconv.Itoa(port) + "-" + id + "." + c.face.cfg.Domain
}

func previewLink(ctx context.Context, c *call, in previewIn) (out previewOut, err error) {
	if in.Port < 1 || in.Port > 65535 {
		return out, cay.Errorf(cay.Invalid, "port: must be 1 to 65535")
	}
	box, err := c.open(ctx, in.target, 0)
	if err != nil {
		return out, err
	}
	out = previewOut{Sandbox: box.ID, URL: c.portURL(box.ID, in.Port)}
	if box.TrafficToken != "" {
		out.Header = "e2b-traffic-access-token: " + box.TrafficToken
		c.say("its ports are private: requests need the header %s", out.Header)
	}
	c.content = append(c.content, &sdk.ResourceLink{URI: out.URL, Name: "port " + strconv.Itoa(in.Port)})
	c.say("%s", out.URL)
	return out, nil
}

// capture takes a picture of the screen, which is standard output.
const capture = `command -v scrot >/dev/null || exit 3
export DISPLAY=${DISPLAY:-:0}
f=$(mktemp --suffix=.png) && trap 'rm -f "$f"' EXIT
scrot -p -o "$f" >&2 && cat "$f"`

// maxScreen bounds the bytes of a picture.
const maxScreen = 8 << 20

func screenshot(ctx context.Context, c *call, in target) (out screenOut, err error) {
	box, err := c.open(ctx, in, 0)
	if err != nil {
		return out, err
	}
	picture, errs := &bounded{most: maxScreen + 1}, &excerpt{most: 1000}
	p, err := box.Start(ctx, client.Command{Path: "/bin/bash", Args: []string{"-c", capture}, Stdout: picture, Stderr: errs})
	if err != nil {
		return out, err
	}
	exit, err := p.Wait()
	switch {
	case err != nil:
		return out, err
	case exit.Code == 3:
		return out, cay.Errorf(cay.Unsupported, "sandbox %s has no screen", box.ID).WithHint("make one with create_sandbox from the template desktop")
	case exit.Code != 0:
		return out, cay.Errorf(cay.Conflict, "the screen of sandbox %s cannot be seen: %s", box.ID, errs.text())
	case len(picture.b) > maxScreen:
		return out, cay.Errorf(cay.Exhausted, "the picture has more than %d bytes", maxScreen)
	}
	c.bare = true
	c.content = append(c.content, &sdk.ImageContent{Data: picture.b, MIMEType: "image/png"})
	return screenOut{box.ID}, nil
}
