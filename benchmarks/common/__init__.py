"""What every benchmark shares: numbered lines and their report, intervals, turns, and what the machine was like. Peers
import `turns` in environments of their own: it needs the standard library alone."""
