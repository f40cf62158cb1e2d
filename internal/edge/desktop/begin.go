package desktop

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/guest/command"
)

// starter starts a screen and its desktop, unless there is one, and a VNC server for
// it: as E2B's Desktop SDKs start them, so that each finds what the other started.
const starter = `
command -v x11vnc >/dev/null && command -v Xvfb >/dev/null || exit 127
export DISPLAY=:0
if ! xdpyinfo >/dev/null 2>&1; then
	setsid Xvfb :0 -ac -screen 0 1280x800x24 -retro -dpi 96 -nolisten tcp -nolisten unix >/dev/null 2>&1 &
	for i in $(seq 200); do xdpyinfo >/dev/null 2>&1 && break; sleep 0.1; done
	cd && setsid startxfce4 >/dev/null 2>&1 &
fi
exec x11vnc -bg -display :0 -forever -wait 50 -shared -rfbport 5900 -nopw >/dev/null 2>/tmp/x11vnc_stderr.log
`

// noPrograms is how the starter ends where its programs are missing.
const noPrograms = 127

// begin has a VNC server run in a sandbox.
func (d *Desktops) begin(ctx context.Context, box Box) error {
	web := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.cfg.Dial(ctx, box.ID, guest.AgentPort)
		},
		MaxResponseHeaderBytes: 64 << 10, DisableCompression: true, DisableKeepAlives: true,
	}}
	err := command.Run(ctx, command.NewClient(web, "http://agent"), command.Command{
		User: "user", Dir: "/", Token: box.Token, Args: []string{"/bin/sh", "-c", starter},
	})
	var exit *command.Exit
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit) && exit.Code == noPrograms:
		return cay.Errorf(cay.Unsupported, "sandbox %s has no desktop", box.ID).
			WithHint("make it of the template desktop, or start a VNC server in it on port %d", Port)
	case ctx.Err() != nil:
		return cay.Errorf(cay.Unavailable, "the desktop of sandbox %s did not start within %s", box.ID, beginWithin.Round(time.Second))
	}
	return cay.Wrap(cay.Unavailable, err, "the desktop of sandbox %s did not start", box.ID).
		WithHint("/tmp/x11vnc_stderr.log in the sandbox may say why")
}
